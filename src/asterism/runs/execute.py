"""A run from its configuration to its report, begun in a new folder or taken up where an old one stopped."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch

from asterism import memory
from asterism.algorithms import gal, screen
from asterism.data.images import Dataset
from asterism.data.picture import site_class_picture
from asterism.data.sources import Loaded
from asterism.data.sources import load as load_images
from asterism.data.split import FederationSplit, StageSplit, load_split, make_split, save
from asterism.errors import AsterismError
from asterism.experiment import Experiment, dump
from asterism.experiment import load as load_experiment
from asterism.files import locked, now, write_json, write_text
from asterism.flow import State, run
from asterism.privacy.ledger import Ledger
from asterism.report.page import write_report
from asterism.runs.driver import Account, Driver, Fleet, Progress
from asterism.runs.explain import explain
from asterism.runs.inprocess import Watch
from asterism.runs.progress import Silent
from asterism.runs.replay import Recorder
from asterism.runs.simulate import Simulation, simulate
from asterism.runs.store import RunFolder
from asterism.site import Gate


def default_folder(experiment: Experiment) -> Path:
    """Where a run goes that was given no folder."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{experiment.name}"


def new_folder(experiment: Experiment, out: Path | None = None) -> Path:
    """The folder of a new run, holding its configuration."""
    out = out or default_folder(experiment)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AsterismError(
            "the output folder is not empty", where=str(out), fix=f"another --out, or asterism resume {out}"
        )
    write_text(out / "config.toml", "".join(f"# {line}\n" for line in _circumstances()) + "\n" + dump(experiment))
    return out


Loader = Callable[..., Loaded]  # as asterism.data.sources.load


class Watched(Fleet, Protocol):
    """A fleet whose replies pass gates and are told of."""

    gates: Sequence[Gate]
    watch: Watch | None


Over = Callable[[Simulation, RunFolder], Watched]  # who answers a simulation's asks in place of this process


def execute(
    folder: Path, progress: Progress | None = None, load: Loader = load_images, over: Over | None = None
) -> dict[str, Any]:
    """Brings the run in ``folder`` to its end, from wherever it stands, and gives its results.

    ``load`` reads the images; several runs of a process may share what it gives.
    """
    if not (folder / "config.toml").exists():
        raise AsterismError("not a run folder: it has no config.toml", where=str(folder))
    experiment = load_experiment(folder / "config.toml")
    with locked(folder):
        for stale in folder.rglob(".*.part"):  # what a kill left half-written
            stale.unlink()
        return _execute(folder, experiment, progress or Silent(), load, over)


def _execute(
    folder: Path, experiment: Experiment, progress: Progress, load: Loader, over: Over | None
) -> dict[str, Any]:
    kept = RunFolder(folder)
    loaded = load(experiment.data, seed=experiment.seed)
    split = settled_split(folder, experiment, loaded.dataset)
    simulation = simulate(experiment, dataset=loaded.dataset, split=split, stores=kept.stores)
    for stage in simulation.stages:
        progress.drawn(site_class_picture(simulation.split, stage, loaded.dataset.train.labels))
    driver = _driver(simulation, simulation.fleet if over is None else over(simulation, kept), kept, progress)
    state = _begin(simulation, kept, driver)
    if loaded.skipped:
        driver.event("images_skipped", count=len(loaded.skipped), ids=list(loaded.skipped))
        progress.warned(f"{len(loaded.skipped)} images could not be read and were skipped, first {loaded.skipped[0]}")
    for stage in simulation.stages:
        if not any(done["name"] == stage.name for done in driver.account.stages):
            state = _stage(simulation, driver, state, stage)
            _write_classes(folder, simulation, state)
            explain(folder, simulation, state, stage.name)
    results = {"run": experiment.name, "seed": experiment.seed, "stages": driver.results()}
    write_json(folder / "results.json", results)
    driver.event("finished")
    write_report(folder)
    return results


def settled_split(folder: Path, experiment: Experiment, dataset: Dataset) -> FederationSplit:
    """The split of a run: what its folder holds, drawn and written there where it holds none."""
    path = folder / "split.json"
    if path.exists():
        return load_split(path, dataset.train)
    split = make_split(dataset.train, experiment.split, experiment.seed)
    save(split, path, dataset.train)
    return split


def _driver(simulation: Simulation, fleet: Watched, kept: RunFolder, progress: Progress) -> Driver:
    experiment = simulation.experiment
    record = experiment.machine.record
    fleet.gates = (Ledger(kept.path / "ledger.jsonl", now),)
    fleet.watch = progress.replied
    return Driver(
        kept, fleet, simulation.measure, progress,
        quorum=experiment.federation.quorum, patience=experiment.federation.patience,
        evaluate_every=experiment.evaluation.every, keep_every=experiment.machine.keep == "all",
        apart=experiment.machine.apart if fleet is simulation.fleet else 0.0,  # others keep step with every state
        alarm=gal.alarm, figures={"screen": screen.figures},
        recorder=None if record == "none" else Recorder(kept.path), record_totals=record == "all",
    )  # fmt: skip


def _begin(simulation: Simulation, kept: RunFolder, driver: Driver) -> State:
    """The state to go on from: the newest kept one, or the one before the first round."""
    experiment, checkpoint = simulation.experiment, kept.newest()
    if checkpoint is None:
        driver.event(
            "started", run=experiment.name, seed=experiment.seed, versions=versions(),
            device=str(simulation.worker.device), participants=list(simulation.participants),
        )  # fmt: skip
        return simulation.state
    driver.account = Account(checkpoint.step, **checkpoint.progress)
    driver.event("resumed", stage=checkpoint.state.stage, round=checkpoint.state.round)
    return on_device(checkpoint.state, simulation.worker.device)


def on_device(state: State, device: torch.device) -> State:
    """The state where its fleet computes, as it would be had the run never stopped."""
    return replace(state, tensors={name: value.to(device) for name, value in state.tensors.items()})


def _stage(simulation: Simulation, driver: Driver, state: State, stage: StageSplit) -> State:
    """Runs one stage to its end, from its beginning or from where the kept state is."""
    rounds = simulation.rounds(stage.name)
    if state.stage != stage.name:
        state = replace(state, stage=stage.name, round=0)
    if state.round == 0:
        driver.event("stage_started", stage=stage.name, rounds=rounds, classes=list(stage.classes))
    driver.progress.stage(stage.name, rounds, state.round)
    final = run(simulation.flow(state), driver.ask, driver.keep)
    if looked := _looked_at(simulation, driver.folder, stage.name):
        driver.event("screened", stage=stage.name, sites=looked)
    earlier = sum(done["estimated"] or done["true"] for done in driver.account.stages)
    estimated = len(final.classes) - earlier if driver.account.stages else None
    driver.finish(final, true=len(stage.classes), estimated=estimated, by_stage=simulation.by_stage(final))
    return final


def _looked_at(simulation: Simulation, kept: RunFolder, stage: str) -> list[dict[str, Any]]:
    """By simulated participant, images that it screened and called novel; a server of real sites sees their sums."""
    found = []
    for name in simulation.participants:
        entry = kept.stores.of(name).get(memory.MEMORY + stage)
        if entry is not None:
            held = memory.from_tensors(entry)
            found.append({"site": name, "images": held.seen, "flagged": held.flagged})
    return found


def _write_classes(folder: Path, simulation: Simulation, state: State) -> None:
    """What the rows of the head are called, and how test images of each true class spread over them."""
    counts = {name: table.astype(int).tolist() for name, table in simulation.tables(state).items()}
    names = {"classes": simulation.classes_met(state.stage), "rows": state.classes}
    write_json(folder / "tables" / f"{state.stage}.json", {"format": 1, "stage": state.stage, **names, **counts})
    known = len(simulation.stages[0].classes)
    rows = [
        {"row": i, "name": name, "origin": "known" if i < known else "discovered"}
        for i, name in enumerate(state.classes)
    ]
    write_json(folder / "labels.json", {"format": 1, "rows": rows})


def versions() -> dict[str, str]:
    """Versions of what computes."""
    names = ("asterism", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "not installed"


def _circumstances() -> list[str]:
    lines = [", ".join(f"{name} {version}" for name, version in versions().items()), platform.platform()]
    return lines + ([f"git {found}"] if (found := commit()) else [])


def commit() -> str:
    """The commit of the source that computes, as far as it can be told; ASTERISM_COMMIT tells it of a bare copy."""
    if told := os.environ.get("ASTERISM_COMMIT"):
        return told
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() if described.returncode == 0 else ""
