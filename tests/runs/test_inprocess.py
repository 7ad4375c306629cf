from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier

import pytest
import torch

from asterism.flow import Answers, Collect, Options, Reply, Sum, Tensors, Total, Version
from asterism.runs.inprocess import InProcess
from asterism.site import Share, Site
from asterism.worker import Worker

VERSION = Version("known", 3, "layout")
NAMES = ("ann", "bob", "eve")


def no_share(stage: str) -> Share:
    raise AssertionError("this task needs no images")


def site(name: str) -> Site:
    worker: Worker = None  # type: ignore[assignment]  # these tasks need no network
    return Site(name, no_share, {}, worker)


def length(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Every participant's tensor is the length of its name plus what was sent."""
    return Reply({"x": tensors["x"] + len(site.name)}, weight=2.0, metrics={"images": 1.0})


def fails_for_bob(site: Site, tensors: Tensors, options: Options) -> Reply:
    if site.name == "bob":
        raise ValueError("no camera")
    return length(site, tensors, options)


def poison(site: Site, tensors: Tensors, options: Options) -> Reply:
    return Reply({"x": torch.tensor([float("nan")])}) if site.name == "eve" else length(site, tensors, options)


def fleet(task: Callable[[Site, Tensors, Options], Reply], **more: object) -> InProcess:
    return InProcess(site, NAMES, {"task": task}, **more)  # type: ignore[arg-type]


def total(answer: object) -> Total:
    assert isinstance(answer, Total)
    return answer


def order(*participants: str) -> Sum:
    return Sum(participants or NAMES, "task", {"x": torch.tensor([1.0])}, VERSION)


def test_sum_is_the_weighted_total_and_its_mean() -> None:
    found = total(fleet(length).answer(order()))
    assert (found.weight, found.replies, found.contributors, found.metrics) == (6.0, 3, 3, {"images": 3.0})
    torch.testing.assert_close(found.mean()["x"], torch.tensor([4.0]))


def test_collect_gives_every_reply_in_the_order_asked() -> None:
    found = fleet(length).answer(Collect(("eve", "ann"), "task", {"x": torch.zeros(1)}, VERSION))
    assert isinstance(found, Answers)
    assert list(found.replies) == ["eve", "ann"]


def test_exception_of_one_participant_is_an_answer_and_the_others_count() -> None:
    found = total(fleet(fails_for_bob).answer(order()))
    assert found.replies == 2
    (failure,) = found.failures
    assert (failure.participant, failure.reason) == ("bob", "exception")
    assert "ValueError: no camera (test_inprocess.py:" in failure.detail


def test_reply_that_is_not_finite_is_refused_and_never_averaged() -> None:
    found = total(fleet(poison).answer(order()))
    assert found.replies == 2
    (failure,) = found.failures
    assert (failure.participant, failure.reason) == ("eve", "rejected")
    assert "x holds values that are not finite" in failure.detail
    assert torch.isfinite(found.tensors["x"]).all()


def test_unknown_participant_and_unknown_task_are_failures_not_crashes() -> None:
    assert total(fleet(length).answer(order("zoe"))).failures[0].reason == "unavailable"
    unknown = Sum(NAMES[:1], "dance", {}, VERSION)
    assert "KeyError: 'dance'" in total(fleet(length).answer(unknown)).failures[0].detail


def ticking(*instants: float) -> Callable[[], float]:
    clock: Iterator[float] = iter(instants)
    return lambda: next(clock)


def test_reply_after_the_deadline_and_turns_after_it_are_timeouts() -> None:
    # The deadline is set at 0 + 10; ann answers at 2, bob begins at 3 and answers at 11, eve is not begun at 12.
    late = fleet(length, deadline=10.0, clock=ticking(0, 1, 2, 3, 11, 12))
    found = total(late.answer(order()))
    assert found.replies == 1
    assert [(f.participant, f.reason) for f in found.failures] == [("bob", "timeout"), ("eve", "timeout")]


def test_gates_see_every_reply_with_its_version_and_may_change_it() -> None:
    def doubled(name: str, ask: object, reply: Reply) -> Reply:
        assert reply.version == VERSION
        return Reply({"x": reply.tensors["x"] * 2}, reply.weight, reply.metrics, reply.version)

    found = total(fleet(length, gates=(doubled,)).answer(order()))
    torch.testing.assert_close(found.mean()["x"], torch.tensor([8.0]))


def test_interrupt_is_no_failure_of_a_participant() -> None:
    def interrupted(site: Site, tensors: Tensors, options: Options) -> Reply:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet(interrupted).answer(order())


def test_each_worker_has_one_participant_at_a_time_who_comes_back_to_it() -> None:
    names, meeting = ("ann", "bob", "eve", "zoe"), Barrier(2, timeout=10)
    at_work: set[int] = set()
    history: list[dict[str, int]] = []

    def of(number: int) -> Callable[[str], Site]:
        return lambda name: Site(name, no_share, {"worker": {"number": torch.tensor(number)}}, None)  # type: ignore[arg-type]

    def task(site: Site, tensors: Tensors, options: Options) -> Reply:
        number = int(site.store["worker"]["number"])
        assert number not in at_work
        at_work.add(number)
        meeting.wait()  # two do work at once
        history[-1][site.name] = number
        at_work.remove(number)
        meeting.wait()
        return Reply({"x": tensors["x"]})

    both = InProcess([of(0), of(1)], names, {"task": task})
    had: dict[str, int] = {}
    for asked in (("ann", "bob"), ("eve", "zoe"), ("bob", "zoe"), ("zoe", "ann"), ("bob", "ann")):
        history.append({})
        assert total(both.answer(order(*asked))).replies == 2
        assert sorted(history[-1].values()) == [0, 1]
        # Both are free to begin with, so whoever comes first finds the worker it had.
        assert any(had.get(name, number) == number for name, number in history[-1].items())
        had |= history[-1]
