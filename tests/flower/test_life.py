"""The server's side of a federation's life, its sites behind a grid in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asterism.files import Lines
from asterism.runs.execute import execute, new_folder
from asterism.runs.sites.life import Life
from asterism.runs.sites.settings import FederationFile
from asterism.runs.store import RunFolder
from tests.flower.federation import Rehearsal, tiny
from tests.synthetic import same_bits


def federation(rehearsal: Rehearsal, **more: Any) -> FederationFile:
    known, *novel = [stage.classes for stage in rehearsal.simulation.split.stages]
    given = {"sites": dict.fromkeys(rehearsal.names, "unused.pub"), "minimum": len(rehearsal.names), **more}
    return FederationFile(
        experiment="demo", address="127.0.0.1:1", classes=known, novel=tuple(novel), shape=(1, 8, 8),
        base=rehearsal.folder, **given,
    )  # fmt: skip


def life(rehearsal: Rehearsal, *, settings: FederationFile | None = None, **more: Any) -> Life:
    experiment = rehearsal.experiment
    fleet = rehearsal.fleet(**more)
    fleet._run = experiment.name
    return Life(settings or federation(rehearsal), experiment, fleet, sleep=lambda seconds: None)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in Lines(folder / "events.jsonl") if line["event"] == name]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path, tiny(novel__0__discovery__floor=5, split__novel=[3]))


def test_whole_life_ends_in_the_bits_and_results_of_the_run_in_process(rehearsal: Rehearsal) -> None:
    lived = life(rehearsal).run()
    alone = rehearsal.folder / "alone"
    new_folder(rehearsal.experiment, alone)
    results = execute(alone)
    kept, other = RunFolder(rehearsal.folder / "federation-run").newest(), RunFolder(alone).newest()
    assert kept is not None and other is not None
    assert same_bits(kept.state.tensors, other.state.tensors)
    for stage in [*lived["stages"], *results["stages"]]:
        assert stage.pop("seconds") > 0
    assert json.loads(json.dumps(lived)) == json.loads(json.dumps(results))
