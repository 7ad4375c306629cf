"""A suite trains m^L once, goes on where it was cut, keeps its budget, and lets a row fail alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.experiment import load
from asterism.files import Lines
from asterism.flow import Ask
from asterism.runs.execute import execute, new_folder
from asterism.runs.progress import Silent
from asterism.runs.store import RunFolder
from asterism.suite.budget import Budget, OutOfTime, parse
from asterism.suite.plan import Place, Suite, assignments, places, planned
from asterism.suite.records import read_records
from tests.suite.conftest import FAILING, TINY, Watching, make, read
from tests.synthetic import same_bits


def events(folder: Path, name: str) -> list[Mapping[str, Any]]:
    return [event for event in Lines(folder / "events.jsonl") if event["event"] == name]


def test_rows_start_from_one_known_stage(tiny: Suite, tmp_path: Path) -> None:
    outcome = make(tiny, tmp_path)
    assert (len(outcome.done), outcome.failed, outcome.left) == (2, {}, [])
    (known,) = (tmp_path / "work/known").iterdir()
    runs = sorted((tmp_path / "work/runs").iterdir())
    assert len(runs) == 2
    assert len(events(known, "finished")) == 1  # it was trained to its end once …
    assert [events(run, "started_from")[0]["known"] for run in runs] == [known.name] * 2
    for run in runs:  # … and no row trained a round of it
        since = [event["event"] for event in Lines(run / "events.jsonl")].index("started_from")
        after = list(Lines(run / "events.jsonl"))[since:]
        assert {event["stage"] for event in after if event["event"] == "answered"} == {"novel-1"}


def test_a_run_from_a_shared_known_stage_ends_as_one_that_trained_its_own(tiny: Suite, tmp_path: Path) -> None:
    make(tiny, tmp_path)
    alone = new_folder(load("demo", [*assignments([tiny.set, tiny.rows[0].set]), "seed=2023"]), tmp_path / "alone")
    execute(alone)
    (run,) = (folder for folder in (tmp_path / "work/runs").iterdir() if folder.name.startswith("cifar100-gal-2023"))
    ends = [RunFolder(folder).newest() for folder in (alone, run)]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].state.stage == ends[1].state.stage == "novel-1"
    assert same_bits(ends[0].state.tensors, ends[1].state.tensors)


def test_scaffolds_variates_come_with_the_known_stage(tmp_path: Path) -> None:
    suite = read(tmp_path, TINY.replace("[set]", '[set]\n"federation.algorithm" = { name = "scaffold" }'))
    make(suite, tmp_path)
    settings = [*assignments([suite.set, suite.rows[0].set]), "seed=2023"]
    execute(alone := new_folder(load("demo", settings), tmp_path / "alone"))
    (run,) = (folder for folder in (tmp_path / "work/runs").iterdir() if folder.name.startswith("cifar100-gal-2023"))
    ends = [RunFolder(folder).newest() for folder in (alone, run)]
    assert ends[0] is not None and ends[1] is not None
    assert "variate" in ends[0].state.tensors
    assert same_bits(ends[0].state.tensors, ends[1].state.tensors)


def test_what_is_done_is_not_made_again(tiny: Suite, tmp_path: Path) -> None:
    make(tiny, tmp_path)
    watching = Watching()
    again = make(tiny, tmp_path, seeds=(2023, 2024), teller=watching)
    assert len(again.kept) == len(again.done) == 2
    assert all(label.endswith("2024") for label in watching.labels)


def test_another_suite_takes_a_run_that_has_the_same_settings(tiny: Suite, tmp_path: Path) -> None:
    make(tiny, tmp_path)
    other = read(tmp_path, TINY.replace('name = "gal"\ntitle', 'name = "ours"\ntitle'), "other")
    assert len(make(other, tmp_path).kept) == 2
    changed = read(tmp_path, TINY.replace('"novel.0.rounds" = 3', '"novel.0.rounds" = 2'), "changed")
    assert make(changed, tmp_path).kept == []


class Cut(Silent):
    """Ends the process's work, as a kill would, before the last round of a novel stage."""

    def asked(self, ask: Ask) -> None:
        if (ask.version.stage, ask.version.round, ask.task) == ("novel-1", 2, "gal"):
            raise KeyboardInterrupt


def test_a_cut_run_goes_on_to_the_same_figures(tiny: Suite, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    make(tiny, whole)
    with pytest.raises(KeyboardInterrupt):
        make(tiny, cut, teller=Watching(Cut))
    assert not list(cut.glob("results/*/*.json"))
    make(tiny, cut)
    resumed = [[event["stage"] for event in events(run, "resumed")] for run in (cut / "work/runs").iterdir()]
    assert sorted(resumed) == [["known"], ["known", "novel-1"]]
    figures = [
        {(r.row, stage.name): (stage.headwise, stage.joint) for r in read_records(f).records for stage in r.stages}
        for f in (whole / "results", cut / "results")
    ]
    assert figures[0] == figures[1] and len(figures[0]) == 4


class Clock:
    """A clock of the test's own, which stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Silent):
    """Every round takes ten seconds of a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def asked(self, ask: Ask) -> None:
        self._clock.now += 10


def test_budget_stops_before_the_round_that_would_not_fit(tiny: Suite, tmp_path: Path) -> None:
    clock = Clock()
    budget = Budget(40, clock=clock)
    first = make(tiny, tmp_path, budget=budget, teller=Watching(lambda: Slow(clock)))
    assert clock.now <= 40
    assert first.done == [] and first.failed == {}
    assert first.left == [place.label for place in places(tiny, seeds=(2023,))]
    calls = 1
    while make(tiny, tmp_path, budget=Budget(40, clock=clock), teller=Watching(lambda: Slow(clock))).left:
        calls += 1
        assert calls < 10
    assert len(read_records(tmp_path / "results").records) == 2


def test_budget_asks_for_something_to_spare() -> None:
    clock = Clock()
    budget = Budget(10, clock=clock)
    budget.require(6)
    with pytest.raises(OutOfTime):
        budget.require(7)
    assert [parse(text) for text in ("90s", "8m", "1.5h")] == [90, 480, 5400]


def test_a_row_fails_alone_and_is_told(tmp_path: Path) -> None:
    suite = read(tmp_path, TINY + FAILING)
    outcome = make(suite, tmp_path)
    assert len(outcome.done) == 2
    refused, nobody = outcome.failed["cifar100 refused seed 2023"], outcome.failed["cifar100 nobody seed 2023"]
    assert "telepathy" in refused and "novel.0.algorithm" in refused
    assert "no participant has novel images" in nobody
    failed = [record for record in read_records(tmp_path / "results").records if record.failed]
    assert [(record.row, record.failed) for record in failed] == [("nobody", nobody)]
    again = Watching()
    make(suite, tmp_path, teller=again)
    assert again.labels == ["cifar100 nobody seed 2023"]  # tried anew, and nothing else


def test_a_dataset_that_is_not_here_is_said_once_and_leaves_no_record(tmp_path: Path) -> None:
    suite = read(tmp_path, TINY.replace("[[rows]]", f"""[[datasets]]
name = "tiny-imagenet"
set = {{ "data.root" = "{tmp_path / 'nothing'}" }}

[[rows]]""", 1))  # fmt: skip
    watching = Watching()
    outcome = make(suite, tmp_path, teller=watching)
    assert (len(outcome.done), outcome.failed, list(outcome.absent)) == (2, {}, ["tiny-imagenet"])
    assert "not on this machine" in outcome.absent["tiny-imagenet"]
    assert len(read_records(tmp_path / "results").records) == 2


def test_a_known_stage_of_another_setting_can_be_shared(tmp_path: Path) -> None:
    settings = """
[[settings]]
name = "more"
set = { "split.participants" = 8, "split.alpha" = 0.3 }

[[settings]]
name = "own"
"""
    suite = read(tmp_path, 'known = "dataset"\n' + TINY + settings)
    assert make(suite, tmp_path).failed == {}
    (known,) = (tmp_path / "work/known").iterdir()
    assert len(json.loads((known / "split.json").read_text())["participants"]) == 4
    for run in (tmp_path / "work/runs").iterdir():
        held = json.loads((run / "split.json").read_text())["participants"]
        assert len(held) == (8 if "-more-" in run.name else 4)
    more = planned(suite, Place("cifar100", "more", "gal", 2023))
    assert (more.known.split.participants, more.experiment.split.participants) == (4, 8)


def test_the_process_wide_generator_is_left_alone(tiny: Suite, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    make(tiny, tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())
