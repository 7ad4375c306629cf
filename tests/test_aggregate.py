"""Totals against NumPy, every reason to refuse a reply, and memory that participants do not fill."""

from __future__ import annotations

import re
import tracemalloc
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asterism.aggregate import Fold, Outcome, answered, refusal
from asterism.algorithms import TASKS
from asterism.algorithms.known import Known
from asterism.federated import Federation
from asterism.flow import Answers, Collect, Failure, Options, Reply, Sum, Tensors, Total, Version
from asterism.runs.inprocess import InProcess
from asterism.seeds import generator
from asterism.site import Share, Site
from asterism.training import Train
from tests.synthetic import Tiny, copied, same_bits

VERSION = Version("known", 3, "layout")
SENT = {"parameters": torch.zeros(5), "buffers": torch.zeros(2), "counters": torch.zeros(2, dtype=torch.int64)}
weights = st.lists(st.floats(0.01, 1000), min_size=1, max_size=8)


def order(*participants: str, kind: type[Sum] | type[Collect] = Sum) -> Sum | Collect:
    return kind(participants, "known", SENT, VERSION)


def tensors(seed: int) -> dict[str, Tensor]:
    rng = generator(seed, "reply")
    counters = torch.randint(0, 2**60, (2,), generator=rng)
    return {
        "parameters": torch.randn(5, generator=rng),
        "buffers": torch.randn(2, generator=rng),
        "counters": counters,
    }


def reply(seed: int = 0, weight: float = 1.0, **changes: Any) -> Reply:
    return Reply({**tensors(seed), **changes}, weight, {"images": 10.0}, VERSION)


def total_of(outcomes: Mapping[str, Outcome]) -> Total:
    answer = answered(order(*outcomes), outcomes.items())
    assert isinstance(answer, Total)
    return answer


@given(weights)
@settings(max_examples=50, deadline=None)
def test_the_mean_equals_numpys_and_counters_are_the_largest(amounts: list[float]) -> None:
    replies = {f"site-{i}": reply(i, weight) for i, weight in enumerate(amounts)}
    total = total_of(replies)
    mean = total.mean()
    for name in ("parameters", "buffers"):
        stacked = np.stack([r.tensors[name].numpy().astype(np.float64) for r in replies.values()])
        np.testing.assert_allclose(
            mean[name].numpy(), np.average(stacked, axis=0, weights=amounts), rtol=1e-4, atol=1e-5
        )
    largest = np.stack([r.tensors["counters"].numpy() for r in replies.values()]).max(axis=0)
    assert mean["counters"].dtype == torch.int64
    np.testing.assert_array_equal(mean["counters"].numpy(), largest)
    assert total.weight == pytest.approx(sum(amounts))
    assert (total.replies, total.contributors) == (len(amounts), len(amounts))
    assert total.metrics == {"images": 10.0 * len(amounts)}


@given(weights, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_of_replies_changes_a_total_by_rounding_only(amounts: list[float], random: Any) -> None:
    replies: list[tuple[str, Outcome]] = [(f"site-{i}", reply(i, weight)) for i, weight in enumerate(amounts)]
    shuffled = list(replies)
    random.shuffle(shuffled)
    one, other = total_of(dict(replies)), total_of(dict(shuffled))
    for name, value in one.mean().items():
        torch.testing.assert_close(other.mean()[name], value, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.tensors["counters"], other.tensors["counters"])


def test_equal_clients_give_their_own_model_back() -> None:
    mean = total_of({name: reply(4, 2.0) for name in "abcd"}).mean()
    assert same_bits(mean, tensors(4))


def test_replies_are_not_written_into() -> None:
    replies = {name: reply(seed, 3.0) for seed, name in enumerate("abc")}
    before = {name: copied(r.tensors) for name, r in replies.items()}
    total = total_of(replies)
    assert all(same_bits(replies[name].tensors, before[name]) for name in replies)
    kept = copied(total.tensors)
    total.mean()
    assert same_bits(total.tensors, kept)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (reply(parameters=torch.full((5,), float("nan"))), "parameters holds values that are not finite"),
        (reply(parameters=torch.tensor([0, 0, float("nan"), 9, 9])), "parameters holds values that are not finite"),
        (reply(buffers=torch.tensor([1.0, float("inf")])), "buffers holds values that are not finite"),
        (reply(buffers=torch.tensor([1.0, -float("inf")])), "buffers holds values that are not finite"),
        (reply(parameters=torch.zeros(6)), r"parameters is float32\[6\], sent was float32\[5\]"),
        (reply(parameters=torch.zeros(1)), r"parameters is float32\[1\]"),
        (reply(parameters=torch.zeros(5, dtype=torch.float64)), r"parameters is float64\[5\]"),
        (reply(counters=torch.zeros(2)), r"counters is float32\[2\], sent was int64\[2\]"),
        (reply(weight=-1.0), "weight -1.0"),
        (reply(weight=float("inf")), "weight inf"),
        (reply(weight=float("nan")), "weight nan"),
        (reply(weight=1e39), "not once weighted by 1e[+]39"),
        (Reply(tensors(1), version=Version("known", 2, "layout")), "round=2.*asked was.*round=3"),
        (Reply(tensors(1), version=Version("novel-1", 3, "layout")), "novel-1"),
        (Reply(tensors(1), version=Version("known", 3, "other")), "other"),
        (Reply(tensors(1)), "answers None"),
        (Reply(tensors(1), 1.0, {"loss": float("nan")}, VERSION), "metric loss is nan"),
        (Reply(tensors(1), 1.0, {"images": float("inf")}, VERSION), "metric images is inf"),
    ],
)
@pytest.mark.parametrize("kind", [Sum, Collect])
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_reply_is_rejected_with_its_reason_and_never_averaged(
    bad: Reply, reason: str, kind: type[Sum] | type[Collect], first: bool
) -> None:
    outcomes: list[tuple[str, Outcome]] = [("good", reply(1)), ("fine", reply(2))]
    outcomes.insert(0 if first else 1, ("bad", bad))
    ask = order("bad", "good", "fine", kind=kind)
    answer = answered(ask, outcomes)
    (failure,) = answer.failures
    assert (failure.participant, failure.reason) == ("bad", "rejected")
    assert failure.detail == refusal(ask, bad)
    assert re.search(reason, failure.detail)
    if isinstance(answer, Total):
        assert same_bits(answer.tensors, total_of({"good": reply(1), "fine": reply(2)}).tensors)
        assert answer.replies == answer.contributors == 2
        assert answer.metrics == {"images": 20.0}
    else:
        assert list(answer.replies) == ["good", "fine"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"more": torch.zeros(3)}, "sends .*'more'.*, the others"),
        ({"more": torch.zeros(4), "variate": torch.zeros(5)}, r"more is float32\[4\], the others send float32\[3\]"),
        ({"more": torch.zeros(3, dtype=torch.int64), "variate": torch.zeros(5)}, r"more is int64\[3\]"),
        ({"more": torch.zeros(3).double(), "variate": torch.zeros(5)}, r"more is float64\[3\]"),
    ],
)
def test_a_reply_unlike_the_others_is_rejected(other: dict[str, Any], reason: str) -> None:
    usual: dict[str, Any] = {"more": torch.ones(3), "variate": torch.ones(5)}
    total = total_of({"a": reply(1, **usual), "b": reply(2, **other), "c": reply(3, **usual)})
    (failure,) = total.failures
    assert (failure.participant, failure.reason) == ("b", "rejected")
    assert re.search(reason, failure.detail)
    assert same_bits(total.tensors, total_of({"a": reply(1, **usual), "c": reply(3, **usual)}).tensors)


def test_a_collect_takes_replies_of_different_shape() -> None:
    ask = Collect(("a", "b"), "prototypes", {}, VERSION)
    outcomes: list[tuple[str, Outcome]] = [
        (name, Reply({"centres": torch.zeros(n, 2)}, version=VERSION)) for name, n in (("a", 3), ("b", 7))
    ]
    answer = answered(ask, outcomes)
    assert isinstance(answer, Answers) and answer.failures == ()
    assert [len(r.tensors["centres"]) for r in answer.replies.values()] == [3, 7]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_reply_of_weight_zero_counts_as_a_reply_and_adds_only_its_metrics(position: int) -> None:
    outcomes = list({"a": reply(1, 2.0), "b": reply(2, 3.0)}.items())
    expected = total_of(dict(outcomes))
    outcomes.insert(position, ("nothing", Reply({}, 0.0, {"images": 1.0}, VERSION)))
    total = total_of(dict(outcomes))
    assert same_bits(total.tensors, expected.tensors)
    assert (total.replies, total.contributors, total.weight) == (3, 2, 5.0)
    assert total.metrics == {"images": 21.0} and total.failures == ()


def test_nothing_to_add_up_has_no_mean() -> None:
    for outcomes in ({}, {"a": Reply({}, 0.0, version=VERSION)}, {"a": Failure("a", "timeout")}):
        total = total_of(outcomes)
        assert (total.weight, total.contributors, total.mean()) == (0.0, 0, {})


def test_failures_are_handed_on_in_the_order_they_came() -> None:
    total = total_of({"a": Failure("a", "exception", "why"), "b": reply(1), "c": Failure("c", "unavailable")})
    assert total.failures == (Failure("a", "exception", "why"), Failure("c", "unavailable"))
    assert (total.replies, total.contributors) == (1, 1)


def test_empty_tensors_may_be_sent() -> None:
    total = total_of({name: reply(1, buffers=torch.zeros(2), none=torch.zeros(0)) for name in "ab"})
    assert total.failures == () and total.mean()["none"].shape == (0,)


def test_a_fold_starts_from_nothing() -> None:
    assert Fold().total() == Total({}, 0.0, 0, 0)


def answered_by(participants: tuple[str, ...]) -> tuple[int, int]:
    """Peak of new memory in bytes, and the most replies alive when another was made, over one ask."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def task(site: Site, sent: Tensors, options: Options) -> Reply:
        nonlocal most
        value = sent["parameters"] + 1
        alive.add(value)
        most = max(most, len(alive))
        return Reply({"parameters": value}, metrics={"images": 1.0})

    tiny = Tiny(backbone="tests.synthetic:Flat")
    share = Share(tiny.images, tiny.images.labels, torch.arange(1))
    fleet = InProcess(lambda name: Site(name, lambda stage: share, {}, tiny.worker), participants, {"count": task})
    ask = Sum(participants, "count", {"parameters": torch.zeros(1000)}, VERSION)
    tracemalloc.start()
    try:
        total = fleet.answer(ask)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(total, Total) and total.contributors == len(participants)
    assert torch.equal(total.mean()["parameters"], torch.ones(1000))
    return peak, most


def test_memory_does_not_grow_with_participants() -> None:
    names = tuple(f"site-{i:05d}" for i in range(10_000))
    answered_by(names[:10])  # what is imported or cached at first use is not counted
    few, most_of_few = answered_by(names[:1_000])
    many, most_of_many = answered_by(names)
    assert many < few + 20_000
    assert most_of_few == most_of_many <= 2  # the reply before waits until the next one is there


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_participants_train_in_one_round(count: int) -> None:
    shares = {f"site-{i:05d}": torch.arange(i % 40, i % 40 + 1 + i % 2) for i in range(count)}
    train = Train(batch=8, local_epochs=1)
    tiny = Tiny(Federation(clients=count), Known(rounds=1), train, shares=shares, backbone="tests.synthetic:Flat")
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    seen: list[int] = []

    def task(site: Site, sent: Tensors, options: Options) -> Reply:
        made = TASKS["known"](site, sent, options)
        seen.append(len(alive))
        alive.update(made.tensors.values())
        return made

    ask = next(tiny.flow(tiny.start))
    assert isinstance(ask, Sum)
    total = InProcess(tiny.site, tuple(shares), {"known": task}).answer(ask)
    assert isinstance(total, Total)
    assert (total.contributors, total.failures) == (count, ())
    assert max(seen) <= 3  # the three tensors of the reply before
