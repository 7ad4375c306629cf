"""The server's side of a federation's life, its sites behind a grid in this process."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from asterism.errors import AsterismError
from asterism.files import Lines
from asterism.runs.execute import execute, new_folder
from asterism.runs.sites.life import Life
from asterism.runs.sites.novelty import start_by_hand
from asterism.runs.sites.settings import FederationFile, Stages
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


class Cut(Exception):  # not an error of the program: a power cut
    """The server is gone."""


def test_killed_server_goes_on_from_its_newest_state_and_asks_no_finished_round_again(rehearsal: Rehearsal) -> None:
    whole = life(rehearsal).run()
    expected = RunFolder(rehearsal.folder / "federation-run").newest()
    (rehearsal.folder / "other").mkdir()
    other = Rehearsal(rehearsal.folder / "other", rehearsal.experiment)
    for asks in (1, 2, 2, 1):
        cut = life(other)
        answer, left = cut._sites.answer, iter(range(asks))

        def answered(ask: Any, answer: Any = answer, left: Any = left) -> Any:
            if next(left, None) is None:
                raise Cut
            return answer(ask)

        cut._sites.answer = answered  # type: ignore[method-assign]
        with pytest.raises(Cut):
            cut.run()
    results = life(other).run()
    kept = RunFolder(other.folder / "federation-run").newest()
    assert kept is not None and expected is not None
    assert same_bits(kept.state.tensors, expected.state.tensors)
    rounds = [(e["stage"], e["round"], e["task"]) for e in events(other.folder / "federation-run", "answered")]
    assert {round: rounds.count(round) for round in rounds if rounds.count(round) > 1} == {}
    for stage in [*results["stages"], *whole["stages"]]:
        stage.pop("seconds")
    assert results == whole


def test_full_disk_at_the_server_stops_it_with_a_sentence_and_loses_nothing(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = life(rehearsal).run()
    (rehearsal.folder / "other").mkdir()
    other = Rehearsal(rehearsal.folder / "other", rehearsal.experiment)
    run, write, full = other.folder / "federation-run", save_file, iter(range(2))

    def filling_up(tensors: Any, file: Path, *more: Any) -> None:
        if run in file.parents and next(full, None) is None:
            file.write_bytes(b"half a stat")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, file, *more)

    monkeypatch.setattr("asterism.runs.store.save_file", filling_up)
    with pytest.raises(AsterismError, match="cannot write: No space left on device"):
        life(other).run()
    monkeypatch.undo()
    kept = RunFolder(run).newest()
    assert kept is not None and [file for file in run.rglob("*.part")] == []
    results = life(other).run()
    for stage in [*results["stages"], *whole["stages"]]:
        stage.pop("seconds")
    assert results == whole


def test_damaged_state_stops_the_server_with_its_name(rehearsal: Rehearsal) -> None:
    life(rehearsal).run()
    (newest,) = (rehearsal.folder / "federation-run" / "states").glob("novel-1*")
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(AsterismError, match="damaged state file"):
        life(rehearsal).run()


def test_late_site_is_asked_in_the_next_round_and_one_that_left_is_not(rehearsal: Rehearsal) -> None:
    rehearsal.experiment = tiny(
        novel=[], known__rounds=6, federation__clients=3, split__participants=3, evaluation__every=0
    )
    rehearsal.grid.away = {"site-03"}
    lived = life(rehearsal, settings=federation(rehearsal, minimum=1))
    keep = lived._driver.keep

    def kept(state: Any) -> None:
        keep(state)
        rehearsal.grid.away = {2: set(), 4: {"site-01"}}.get(state.round, rehearsal.grid.away)

    lived._driver.keep = kept  # type: ignore[method-assign]
    lived.run()
    asked = [e["asked"] for e in events(rehearsal.folder / "federation-run", "answered")]
    late, left = ["site-01", "site-02"], ["site-02", "site-03"]
    assert asked == [late, late, list(rehearsal.names), list(rehearsal.names), left, left]


def test_federation_waits_for_its_minimum_of_sites_and_says_when_it_gives_up(rehearsal: Rehearsal) -> None:
    rehearsal.grid.away = {"site-03"}
    with pytest.raises(AsterismError, match="2 sites are there, 3 are needed"):
        life(rehearsal, settings=federation(rehearsal, wait=0.0)).run()
    status = json.loads((rehearsal.folder / "federation-run" / "status.json").read_text())
    assert status["phase"] == "waiting for sites"
    assert status["sites"]["site-03"] == {"state": "absent"}


@pytest.mark.parametrize(
    ("rule", "begins"),
    [({"images": 1, "sites": 3}, True), ({"images": 10_000}, False), ({"start": "by-hand"}, False)],
)
def test_novel_stage_begins_by_the_rule_or_by_hand(rehearsal: Rehearsal, rule: dict[str, Any], begins: bool) -> None:
    run = rehearsal.folder / "federation-run"
    waited = iter(range(3))

    def sleep(seconds: float) -> None:
        if next(waited, None) is None:
            start_by_hand(run, "novel-1")

    lived = life(rehearsal, settings=federation(rehearsal, stages=Stages(**rule)))
    lived._sleep = sleep
    assert len(lived.run()["stages"]) == 2
    assert (next(waited, None) is not None) is begins
    assert not (run / "start" / "novel-1").exists()


def test_screening_decides_at_the_sites_how_many_images_look_novel(tmp_path: Path) -> None:
    screened = {"novel__0__screening__filter": True, "novel__0__screening__false_alarm": 0.5}
    rehearsal = Rehearsal(tmp_path, tiny(**screened, novel__0__discovery__floor=5))
    life(rehearsal).run()
    (looked,) = events(tmp_path / "federation-run", "looked")
    shares = rehearsal.simulation.split.stages[1].shares
    held = {name: len(rows) for name, rows in shares.items()}
    assert looked["images"].keys() == held.keys()
    assert all(0 < looked["images"][name] < count for name, count in held.items())
