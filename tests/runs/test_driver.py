from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.errors import AsterismError
from asterism.flow import Answer, Answers, Ask, Collect, Failure, Reply, State, Sum, Total, Version
from asterism.runs.driver import Driver
from asterism.runs.progress import Silent
from asterism.runs.replay import Recorder, Replay
from asterism.runs.store import RunFolder

STATE = State("known", 1, {"parameters": torch.ones(2)}, "layout", ("a", "b"))
ASK = Sum(("ann", "bob"), "known", {"parameters": torch.ones(2)}, STATE.version)
SCORES = {"headwise": {"known": 50.0, "novel": None, "all": 50.0}, "joint": {}, "nmi": None, "ari": None}


class Canned:
    """A fleet that gives prepared answers in turn."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)

    def answer(self, ask: Ask) -> Answer:
        return next(self._answers)


def given(replies: int, *failures: Failure) -> Total:
    amounts = {"images": 10.0 * replies, "loss": 6.0, "steps": 3.0}
    return Total({"parameters": torch.full((2,), 4.0)}, 2.0, replies, replies, amounts, failures)


def driver(folder: Path, *answers: Answer, **more: Any) -> Driver:
    measured = more.pop("measure", lambda state: SCORES)
    return Driver(RunFolder(folder), Canned(*answers), measured, Silent(), **more)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def test_answer_is_written_with_its_amounts_and_failures(tmp_path: Path) -> None:
    late = Failure("bob", "timeout", "answered after the deadline")
    driver(tmp_path, given(1, late)).ask(ASK)
    (line,) = events(tmp_path, "answered")
    assert (line["replies"], line["missed"], line["images"], line["loss"]) == (1, False, 10, 2.0)
    assert line["failed"] == [{"participant": "bob", "reason": "timeout", "detail": "answered after the deadline"}]
    assert (line["bytes_up"], line["bytes_down"]) == (8, 16)


def test_round_below_the_quorum_reads_as_nothing(tmp_path: Path) -> None:
    answer = driver(tmp_path, given(1), quorum=2).ask(ASK)
    assert isinstance(answer, Total)
    assert (answer.weight, answer.mean()) == (0.0, {})
    assert events(tmp_path, "answered")[0]["missed"] is True


def test_too_many_missed_rounds_in_a_row_stop_the_run_and_name_a_reason(tmp_path: Path) -> None:
    broken = Failure("ann", "exception", "ValueError: no camera (x.py:3)")
    running = driver(tmp_path, *[given(0, broken)] * 3, quorum=1, patience=3)
    running.ask(ASK)
    running.ask(ASK)
    with pytest.raises(AsterismError, match=r"3 rounds in a row .* ann: exception, ValueError: no camera") as caught:
        running.ask(ASK)
    assert caught.value.where == "round 2 of stage known"
    assert "resume" in caught.value.fix


def test_met_quorum_starts_the_count_of_missed_rounds_again(tmp_path: Path) -> None:
    running = driver(tmp_path, given(0), given(1), given(0), given(1), quorum=1, patience=2)
    for _ in range(4):
        running.ask(ASK)
    assert running.account.missed == 0


@pytest.mark.parametrize(("every", "rounds"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_state_is_measured_when_its_round_is_due(tmp_path: Path, every: int, rounds: list[int]) -> None:
    running = driver(tmp_path, evaluate_every=every)
    for round in (1, 2, 3, 4):
        running.keep(State("known", round, STATE.tensors, "layout", ()))
    assert [line["round"] for line in events(tmp_path, "evaluated")] == rounds


def test_end_of_a_stage_is_measured_once_and_has_results_in_the_documented_shape(tmp_path: Path) -> None:
    measured: list[int] = []

    def measure(state: State) -> dict[str, Any]:
        measured.append(state.round)
        return SCORES

    running = driver(tmp_path, given(2), measure=measure)
    running.ask(ASK)
    running.keep(STATE)
    running.finish(STATE, true=2, estimated=None, by_stage=[50.0])
    assert measured == [1]
    (done,) = running.results()
    assert done.pop("seconds") >= 0
    assert done == {
        "name": "known", "rounds": 1, "images": 20, "true": 2, "estimated": None, **SCORES, "forgetting": None,
    }  # fmt: skip


def test_states_are_kept_apart_and_counted_all_the_same(tmp_path: Path) -> None:
    for name, apart in (("all", 0.0), ("few", 3600.0)):
        running = driver(tmp_path / name, evaluate_every=0, apart=apart)
        for round in (1, 2, 3):
            running.keep(State("known", round, STATE.tensors, "layout", ()))
        running.finish(State("known", 3, STATE.tensors, "layout", ()), true=2, estimated=None, by_stage=[50.0])
    assert [line["round"] for line in events(tmp_path / "all", "kept")] == [1, 2, 3, 3]
    assert [line["round"] for line in events(tmp_path / "few", "kept")] == [3, 3]
    ends = [tmp_path / name / "states" / "known-round003.safetensors" for name in ("all", "few")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_a_stop_between_two_rounds_keeps_what_was_done(tmp_path: Path) -> None:
    class Stopping(Silent):
        def asked(self, ask: Ask) -> None:
            raise KeyboardInterrupt

    running = driver(tmp_path, evaluate_every=0, apart=3600.0)
    running.keep(STATE)
    running.progress = Stopping()
    with pytest.raises(KeyboardInterrupt):
        running.ask(ASK)
    assert [line["round"] for line in events(tmp_path, "kept")] == [1]


def test_a_stop_amid_a_round_keeps_nothing_of_it(tmp_path: Path) -> None:
    class Stopping(Silent):
        def asked(self, ask: Ask) -> None:
            if ask.task == "second":
                raise KeyboardInterrupt

    running = driver(tmp_path, given(2), evaluate_every=0, apart=3600.0)
    running.progress = Stopping()
    running.keep(STATE)
    running.ask(ASK)
    with pytest.raises(KeyboardInterrupt):
        running.ask(Sum(("ann", "bob"), "second", {}, STATE.version))
    assert not (tmp_path / "states").exists()


def test_seconds_of_an_earlier_sitting_count(tmp_path: Path) -> None:
    driver(tmp_path).event("kept", stage="known", round=1, file="x", seconds=100.0)
    running = driver(tmp_path)
    running.finish(STATE, true=2, estimated=None, by_stage=[50.0])
    assert 100 <= running.results()[0]["seconds"] < 160


def replies() -> Answers:
    version = Version("novel-1", 0, "layout")
    return Answers(
        {
            name: Reply({"centres": torch.full((2, 3), value)}, 2.0, {"samples": 9.0}, version)
            for name, value in (("ann", 1.0), ("bob", 2.0))
        },
        (Failure("eve", "timeout", ""),),
    )


COLLECT = Collect(("ann", "bob", "eve"), "prototypes", {}, Version("novel-1", 0, "layout"))


def test_recorded_answers_come_back_as_they_were(tmp_path: Path) -> None:
    recorder, replay = Recorder(tmp_path), Replay(tmp_path)
    recorder.record(ASK, given(2, Failure("bob", "exception", "x")))
    recorder.record(COLLECT, replies())
    total, answers = replay.answer(ASK), replay.answer(COLLECT)
    assert isinstance(total, Total)
    assert isinstance(answers, Answers)
    assert (total.weight, total.replies, total.metrics, total.failures) == (
        2.0, 2, given(2).metrics, (Failure("bob", "exception", "x"),),
    )  # fmt: skip
    assert torch.equal(total.tensors["parameters"], given(2).tensors["parameters"])
    assert list(answers.replies) == ["ann", "bob"]
    assert torch.equal(answers.replies["bob"].tensors["centres"], torch.full((2, 3), 2.0))
    assert answers.failures == replies().failures


def test_participant_can_be_left_out_of_a_collect_but_not_out_of_a_total(tmp_path: Path) -> None:
    recorder, replay = Recorder(tmp_path), Replay(tmp_path, without=["ann"])
    recorder.record(ASK, given(2))
    recorder.record(COLLECT, replies())
    answers = replay.answer(COLLECT)
    assert isinstance(answers, Answers)
    assert list(answers.replies) == ["bob"]
    with pytest.raises(AsterismError, match="none can be left out"):
        replay.answer(ASK)


def test_replay_without_a_record_or_of_another_ask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="no recorded answer to 'known' of round 1"):
        Replay(tmp_path).answer(ASK)
    Recorder(tmp_path).record(ASK, given(2))
    with pytest.raises(AsterismError, match="to another ask"):
        Replay(tmp_path).answer(Sum(("ann",), "known", {}, STATE.version))


@pytest.mark.parametrize(("record", "files"), [(None, 0), (False, 1), (True, 2)])
def test_only_what_is_asked_for_is_recorded(tmp_path: Path, record: bool | None, files: int) -> None:
    recorder = None if record is None else Recorder(tmp_path)
    running = driver(tmp_path, given(2), replies(), recorder=recorder, record_totals=bool(record))
    running.ask(ASK)
    running.ask(COLLECT)
    assert len(list(tmp_path.glob("answers/*"))) == files
