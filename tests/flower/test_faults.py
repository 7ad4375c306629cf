"""What goes wrong at sites and on the way, each with its defined answer; docs/reliability.md lists them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from asterism.flow import Ask, Collect, Failure, Reply, State, Sum, Total
from asterism.runs.flower.fleet import NODE_UNAVAILABLE, REPLY_INCOMPLETE
from asterism.runs.flower.records import content, parcel, replied
from asterism.runs.parcel import Parcel
from asterism.runs.wire import packed_order, packed_reply, unpacked_reply
from tests.flower.federation import Rehearsal
from tests.synthetic import same_bits


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    made = Rehearsal(tmp_path)
    made.greeted()
    return made


def training(rehearsal: Rehearsal, participants: tuple[str, ...] | None = None) -> Sum:
    """The order of the first round, to everybody."""
    simulation = rehearsal.simulation
    ask = next(iter(simulation.flow(simulation.state)))
    assert isinstance(ask, Sum)
    return replace(ask, participants=participants or rehearsal.names)


def prototypes(rehearsal: Rehearsal, **options: Any) -> Collect:
    state: State = replace(rehearsal.simulation.state, stage="novel-1")
    given = {"stage": "novel-1", "clusters": 12, "floor": 0, "seed": 1, **options}
    return Collect(rehearsal.names, "prototypes", state.tensors, state.version, given)


def failed(answer: Any) -> dict[str, tuple[str, str]]:
    return {failure.participant: (failure.reason, failure.detail) for failure in answer.failures}


def ticking(step: float = 1.0) -> Callable[[], float]:
    clock = itertools.count(0.0, step)
    return lambda: next(clock)


def lost(message: Message, code: int = NODE_UNAVAILABLE) -> Message:
    return Message(Error(code, "gone"), reply_to=message)


def silent(message: Message) -> None:
    return None


def saying(parcel_of: Callable[[Reply], Parcel], rehearsal: Rehearsal) -> Callable[[Message], Message]:
    """A site that answers as it should, changed on the way."""

    def handle(message: Message) -> Message:
        def answer(given: Parcel) -> Parcel:
            true = unpacked_reply(rehearsal.residents["site-02"].answer(given), "site-02")
            assert isinstance(true, Reply)
            return parcel_of(true)

        return replied(message, answer)

    return handle


def changed(**tensors: torch.Tensor) -> Callable[[Reply], Parcel]:
    return lambda reply: packed_reply(replace(reply, tensors={**reply.tensors, **tensors}))


def old(reply: Reply) -> Parcel:
    assert reply.version is not None
    return packed_reply(replace(reply, version=replace(reply.version, round=7)))


MISCHIEF: dict[str, tuple[Callable[[Reply], Parcel], str]] = {
    "an old round's reply": (old, "answers"),
    "nan": (changed(parameters=torch.full((1,), torch.nan)), "parameters"),
    "infinity": (changed(buffers=torch.full((1,), torch.inf)), "buffers"),
    "another shape": (changed(parameters=torch.zeros(3)), "parameters is float32[3]"),
    "a further tensor": (changed(more=torch.zeros(3)), "sends"),
    "no tensors at all": (lambda reply: Parcel(packed_reply(reply).header, b"garbage"), "no reply that can be read"),
    "no header": (lambda reply: Parcel("{", b""), "no reply that can be read"),
    "another format": (lambda reply: Parcel('{"format": 9}', b""), "no reply that can be read"),
    "a negative weight": (lambda reply: packed_reply(replace(reply, weight=-1.0)), "weight"),
    "a weight beyond numbers": (lambda reply: packed_reply(replace(reply, weight=1e300)), "not finite"),
    "a metric that is no number": (lambda reply: packed_reply(replace(reply, metrics={"loss": torch.nan})), "metric"),
}


@pytest.mark.parametrize("kind", MISCHIEF)
def test_bad_reply_is_rejected_and_the_others_count(rehearsal: Rehearsal, kind: str) -> None:
    mischief, said = MISCHIEF[kind]
    rehearsal.grid._handles["site-02"] = saying(mischief, rehearsal)
    total = rehearsal.fleet().answer(training(rehearsal))
    assert isinstance(total, Total)
    assert total.replies == 2
    reason, detail = failed(total)["site-02"]
    assert reason == "rejected"
    assert said in detail


def test_huge_but_finite_update_is_averaged_like_any_other(rehearsal: Rehearsal) -> None:
    """What an update may do to the mean is bounded by robust aggregation, which nobody asked for here."""
    ask = training(rehearsal)
    huge = torch.full_like(ask.tensors["parameters"], 1e12)
    rehearsal.grid._handles["site-02"] = saying(changed(parameters=huge), rehearsal)
    total = rehearsal.fleet().answer(ask)
    assert isinstance(total, Total)
    assert (total.replies, total.failures) == (3, ())
    assert float(total.mean()["parameters"].min()) == pytest.approx(1e12 / 3, rel=1e-4)


def test_message_without_a_parcel_is_rejected_at_both_ends(rehearsal: Rehearsal) -> None:
    empty = RecordDict({"other": ConfigRecord({"x": 1})})
    rehearsal.grid._handles["site-02"] = lambda message: Message(empty, reply_to=message)
    assert failed(rehearsal.fleet().answer(training(rehearsal)))["site-02"][0] == "rejected"
    order = Message(empty, 100, "query.order")
    answered = unpacked_reply(parcel(replied(order, rehearsal.residents["site-01"].answer).content), "site-01")
    assert isinstance(answered, Failure)
    assert answered.reason == "rejected"


def test_garbage_order_is_refused_by_the_site(rehearsal: Rehearsal) -> None:
    good = packed_order("rehearsal", training(rehearsal))
    for bad in (Parcel("?", b""), Parcel(good.header, b"\0" * 40), Parcel('{"format": 1}', good.body)):
        answered = unpacked_reply(rehearsal.residents["site-01"].answer(bad), "site-01")
        assert isinstance(answered, Failure)
        assert answered.reason == "rejected"


def test_giant_reply_is_rejected_by_its_length(rehearsal: Rehearsal) -> None:
    total = rehearsal.fleet(largest=10_000).answer(training(rehearsal))
    assert {reason for reason, _ in failed(total).values()} == {"rejected"}
    assert "at most 10000 are taken" in failed(total)["site-01"][1]


def test_site_that_hangs_past_the_deadline_is_a_timeout(rehearsal: Rehearsal) -> None:
    rehearsal.grid._handles["site-02"] = silent
    total = rehearsal.fleet(deadline=20.0, clock=ticking()).answer(training(rehearsal))
    assert failed(total) == {"site-02": ("timeout", "no answer before the deadline")}


def test_reply_that_arrived_before_the_deadline_counts_though_another_site_hangs(rehearsal: Rehearsal) -> None:
    rehearsal.grid._handles["site-01"] = silent  # asked first, so the deadline passes before the others are looked at
    total = rehearsal.fleet(deadline=20.0, clock=ticking()).answer(training(rehearsal))
    assert isinstance(total, Total)
    assert (total.replies, list(failed(total))) == (2, ["site-01"])


@pytest.mark.parametrize("code", [NODE_UNAVAILABLE, REPLY_INCOMPLETE])
def test_lost_site_that_comes_back_gets_the_order_again(rehearsal: Rehearsal, code: int) -> None:
    whole = rehearsal.fleet().answer(training(rehearsal))
    handle = rehearsal.grid._handles["site-02"]

    def dies(message: Message) -> Message:
        rehearsal.grid._handles["site-02"] = handle
        return lost(message, code)

    rehearsal.grid._handles["site-02"] = dies
    again = rehearsal.fleet(rejoin=30.0, clock=ticking()).answer(training(rehearsal))
    assert isinstance(whole, Total)
    assert isinstance(again, Total)
    assert (again.replies, again.failures) == (3, ())
    assert same_bits(whole.tensors, again.tensors)


def test_lost_site_that_stays_away_is_unavailable_and_the_round_goes_on(rehearsal: Rehearsal) -> None:
    def dies(message: Message) -> Message:
        rehearsal.grid.away.add("site-02")
        return lost(message)

    rehearsal.grid._handles["site-02"] = dies
    total = rehearsal.fleet(rejoin=30.0, clock=ticking()).answer(training(rehearsal))
    assert failed(total) == {"site-02": ("unavailable", "not connected")}


def test_site_restarted_within_a_round_gets_the_order_again(rehearsal: Rehearsal) -> None:
    """Flower delivers a message once, so a site that took one and died would be waited for in vain."""
    handle, nodes = rehearsal.grid._handles["site-02"], rehearsal.grid.get_nodes

    def dies(message: Message) -> None:
        rehearsal.grid._handles["site-02"] = handle
        rehearsal.grid.get_nodes = restarted  # type: ignore[method-assign]

    def restarted() -> list[Any]:
        found = list(nodes())
        for node in found:
            node.last_activated_at = "later"
        return found

    rehearsal.grid._handles["site-02"] = dies
    total = rehearsal.fleet(clock=ticking()).answer(training(rehearsal))
    assert isinstance(total, Total)
    assert (total.replies, total.failures) == (3, ())


def test_order_that_comes_twice_is_answered_with_the_same_bytes_and_no_work(rehearsal: Rehearsal) -> None:
    order = packed_order("rehearsal", training(rehearsal))
    first = rehearsal.residents["site-01"].answer(order)
    restarted = rehearsal.resident("site-01")
    assert restarted.answer(order) == first
    assert [note["again"] for note in rehearsal.notes if note["event"] == "answered"][-2:] == [False, True]
    ledger = [json.loads(line) for line in ledger_of(rehearsal, "site-01")]
    assert [line["task"] for line in ledger] == ["hello", "known", "known"]


def ledger_of(rehearsal: Rehearsal, name: str) -> list[str]:
    return (rehearsal.folder / "sites" / name / "ledger.jsonl").read_text().splitlines()


def test_site_whose_disk_is_full_says_so_and_remembers_what_it_did_before(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = packed_order("rehearsal", prototypes(rehearsal))
    resident = rehearsal.residents["site-01"]

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        answered = unpacked_reply(resident.answer(order), "site-01")
    assert isinstance(answered, Failure)
    assert "No space left" in answered.detail
    assert not list(resident._memory.store)
    assert isinstance(unpacked_reply(resident.answer(order), "site-01"), Reply)


def test_site_with_other_class_names_is_told_and_sends_nothing_of_its_own(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    contract = rehearsal.contract
    other = contract.model_copy(update={"classes": ("zéro", *contract.classes[1:])})
    answers = rehearsal.fleet().answer(rehearsal.hello("site-01", other))
    assert failed(answers)["site-01"] == (
        "rejected",
        "the site's names, images or version do not fit the contract; its owner was told what to mend",
    )
    (told,) = [note["reason"] for note in rehearsal.notes if note["event"] == "failed"]
    assert "'zero' is not one of the federation's 7 classes" in told
    assert "calls it 'zéro'" in told
    assert ledger_of(rehearsal, "site-01") == [] if (tmp_path / "sites/site-01/ledger.jsonl").exists() else True
    assert failed(rehearsal.fleet().answer(training(rehearsal, ("site-01",))))["site-01"][0] == "rejected"


def test_site_under_anothers_name_is_refused(rehearsal: Rehearsal) -> None:
    rehearsal.grid._handles["site-02"] = partial(rehearsal._handle, "site-01")  # one key, two places
    assert failed(rehearsal.fleet().answer(rehearsal.hello("site-02")))["site-02"][0] == "rejected"


def test_what_a_task_fails_of_stays_at_the_site(rehearsal: Rehearsal) -> None:
    def fails(*arguments: object) -> Reply:
        raise ValueError("patient 17 has no scan")

    rehearsal.residents["site-01"]._tasks = {"known": fails}
    reason, detail = failed(rehearsal.fleet().answer(training(rehearsal)))["site-01"]
    assert reason == "exception"
    assert "ValueError at test_faults.py" in detail
    assert "patient" not in detail
    assert any("patient 17" in note.get("reason", "") for note in rehearsal.notes)


def test_withheld_task_is_refused_without_work_even_if_it_was_answered_before(rehearsal: Rehearsal) -> None:
    ask: Ask = replace(prototypes(rehearsal), participants=("site-01",))
    assert not rehearsal.fleet().answer(ask).failures
    rehearsal.residents["site-01"] = rehearsal.resident("site-01", withhold=("prototypes",))
    assert failed(rehearsal.fleet().answer(ask))["site-01"] == ("rejected", "this site withholds 'prototypes'")


@pytest.mark.parametrize("asked", [0, 3, 6])
def test_floor_of_a_site_holds_whatever_the_server_asks(rehearsal: Rehearsal, asked: int) -> None:
    answers = rehearsal.fleet().answer(prototypes(rehearsal, floor=asked))
    assert not answers.failures
    least = [int(reply.tensors["sizes"].min()) for reply in answers.replies.values()]  # type: ignore[union-attr]
    assert min(least) >= max(5, asked)
    groups = [json.loads(ledger_of(rehearsal, name)[-1])["smallest_group"] for name in rehearsal.names]
    assert groups == least


def test_content_of_a_broadcast_is_one_object_for_all(rehearsal: Rehearsal) -> None:
    rehearsal.fleet().answer(training(rehearsal))
    sent = [message.content for message in rehearsal.grid.pushed[-3:]]
    assert sent[0] is sent[1] is sent[2]
    order = parcel(sent[0])
    assert content(order) == sent[0]
    assert len(order) <= 1.05 * sum(t.nbytes for t in rehearsal.simulation.state.tensors.values())
