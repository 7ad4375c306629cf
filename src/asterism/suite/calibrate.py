"""Rates of this machine, measured in runs of two rounds, one for each method of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from asterism.files import Lines
from asterism.runs.execute import execute, new_folder
from asterism.suite.cost import UNTRAINED, Method, Rates
from asterism.suite.plan import Place, Suite, planned

ROUNDS = 2  # the first makes and captures kernels; the second is timed


def calibrated(suite: Suite, chosen: Sequence[Place], known: Rates, overrides: Sequence[str] = ()) -> Rates:
    """The rates, with those that were missing measured here."""
    found = dict(known.images)
    for place in chosen:
        algorithms = [novel.algorithm.name for novel in planned(suite, place, overrides).experiment.novel]
        names = [name for name in algorithms if name not in UNTRAINED]
        if all((place.dataset, name) in found for name in ("known", *names)):
            continue
        with TemporaryDirectory() as folder:
            for method, rate in _measured(suite, place, overrides, Path(folder) / "run").items():
                found.setdefault(method, rate)
    return replace(known, images=found)


def _measured(suite: Suite, place: Place, overrides: Sequence[str], folder: Path) -> dict[Method, float]:
    whole = planned(suite, place, overrides).experiment
    short = [f"known.rounds={ROUNDS}", *(f"novel.{i}.rounds={ROUNDS}" for i in range(len(whole.novel)))]
    experiment = planned(suite, place, [*overrides, *short]).experiment
    names = {"known": "known"} | {f"novel-{i + 1}": n.algorithm.name for i, n in enumerate(experiment.novel)}
    execute(new_folder(experiment, folder))
    return {
        (place.dataset, names[line["stage"]]): line["images"] / line["seconds"]
        for line in Lines(folder / "events.jsonl")
        if line["event"] == "answered" and line["images"] and line["round"] == ROUNDS - 1
    }
