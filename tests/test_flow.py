"""The contract of flows, and known class learning walked by hand with canned answers."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.algorithms.known import Known
from asterism.algorithms.local import draw
from asterism.federated import FEDERATED, Federation
from asterism.flow import Answer, Answers, Ask, Collect, Flow, Reply, State, Sum, Total, Version, run
from asterism.seeds import generator
from asterism.training import Train
from tests.synthetic import Tiny, same_bits

NOTHING = Total({}, 0.0, 0, 0)
Walk = Generator[Ask | State, Any, State]


def learning(rounds: int = 3, name: str = "fedavg", **others: Any) -> Tiny:
    federation = Federation.model_validate({"algorithm": {"name": name}, "clients": 2})
    shares = {f"site-{k}": torch.arange(k, 48, 5) for k in range(5)}
    return Tiny(federation, Known(rounds=rounds), shares=shares, **others)


def canned(state: State, weight: float = 2.0, shift: float = 1.0) -> Total:
    """A total whose mean is the state's model, shifted."""
    tensors: dict[str, Tensor] = {
        "parameters": (state.tensors["parameters"] + shift) * weight,
        "buffers": (state.tensors["buffers"] + shift) * weight,
        "counters": state.tensors["counters"] + 5,
    }
    return Total(tensors, weight, 2, 2)


def asked(flow: Walk, answer: Any = None) -> Sum:
    step = flow.send(answer)
    assert isinstance(step, Sum)
    return step


def kept(flow: Walk, answer: Answer) -> State:
    step = flow.send(answer)
    assert isinstance(step, State)
    return step


def test_known_class_learning_is_the_papers_box() -> None:
    tiny = learning(rounds=2)
    flow, state, steps = tiny.flow(tiny.start), tiny.start, list[str]()
    with pytest.raises(StopIteration) as ended:
        ask = asked(flow)  # for t = 1 … E_g: select 𝒦, distribute
        while True:
            steps.append(f"ask {ask.task} of round {ask.version.round}")
            assert ask.tensors == state.tensors and ask.version == state.version
            assert len(ask.participants) == 2 and set(ask.participants) <= set(tiny.shares)
            previous, state = state, kept(flow, canned(state))  # the clients' mean
            steps.append(f"keep round {state.round}")
            torch.testing.assert_close(state.tensors["parameters"], previous.tensors["parameters"] + 1)
            torch.testing.assert_close(state.tensors["buffers"], previous.tensors["buffers"] + 1)
            assert torch.equal(state.tensors["counters"], previous.tensors["counters"] + 5)
            ask = asked(flow)
    assert steps == ["ask known of round 0", "keep round 1", "ask known of round 1", "keep round 2"]
    assert ended.value.value is state
    assert (state.stage, state.classes, state.layout) == ("known", tiny.start.classes, tiny.start.layout)


def test_an_order_says_all_that_a_client_needs() -> None:
    train = Train(batch=8, local_epochs=1, lr=0.08, warmup=1)
    tiny = learning(rounds=3, train=train)
    flow, state, rates = tiny.flow(tiny.start), tiny.start, []
    for t in range(3):
        ask = asked(flow)
        local = json.loads(str(ask.options["local"]))
        assert (local["seed"], local["stage"], local["round"]) == (7, "known", t)
        assert local["train"] == train.model_dump()
        assert json.loads(str(ask.options["method"])) == tiny.known.model_dump(mode="json")
        assert local["federation"]["algorithm"] == {"name": "fedavg"}
        rates.append(local["lr"])
        state = kept(flow, canned(state))
    assert rates == pytest.approx([0.08, 0.08, 0.04])


def test_a_missed_round_keeps_the_model_and_goes_on() -> None:
    for name in FEDERATED:
        tiny = learning(name=name)
        flow = tiny.flow(tiny.start)
        asked(flow)
        state = kept(flow, NOTHING)
        assert state.round == 1 and same_bits(state.tensors, tiny.start.tensors)
        assert asked(flow).version == Version("known", 1, tiny.start.layout)


def participants(tiny: Tiny) -> list[tuple[str, ...]]:
    """The clients of every round, each round missed."""
    asks: list[Ask] = []

    def missed(ask: Ask) -> Answer:
        asks.append(ask)
        return NOTHING

    run(tiny.flow(tiny.start), missed, lambda state: None)
    return [ask.participants for ask in asks]


def test_every_algorithm_draws_the_same_clients() -> None:
    expected = participants(learning(rounds=8))
    assert all(participants(learning(rounds=8, name=name)) == expected for name in FEDERATED)
    assert participants(learning(rounds=8, train=Train(batch=4, local_epochs=2))) == expected
    assert participants(learning(rounds=8, seed=8)) != expected
    assert len(set(expected)) > 1 and {name for clients in expected for name in clients} == set(learning().shares)


def test_clients_do_not_depend_on_what_was_answered() -> None:
    tiny = learning(rounds=2)
    tiny.run()
    assert [ask.participants for ask in tiny.asks] == participants(learning(rounds=2))


def test_a_draw_takes_so_many_in_their_order_and_everybody_where_there_are_no_more() -> None:
    names = [f"site-{i}" for i in range(20)]
    for t in range(10):
        chosen = draw(names, 7, generator(1, t))
        assert len(set(chosen)) == 7 and list(chosen) == sorted(chosen, key=names.index)
    assert draw(names, 20, generator(1)) == draw(names, 99, generator(1)) == tuple(names)
    assert draw(names, 7, generator(1)) == draw(names, 7, generator(1))
    often = sum("site-0" in draw(names, 5, generator(2, t)) for t in range(400))
    assert 60 < often < 140  # a quarter of 400, five deviations wide


@pytest.mark.parametrize("name", sorted(FEDERATED))
@pytest.mark.parametrize("after", [0, 1, 2])
def test_going_on_from_a_kept_state_repeats_asks_and_end_to_the_bit(name: str, after: int) -> None:
    tiny = learning(rounds=4, name=name)
    states, stores = list[State](), []

    def keep(state: State) -> None:
        states.append(state)
        stores.append(tiny.copied_stores())

    end = tiny.run(keep=keep)
    again = replace(tiny, stores=stores[after], asks=[], answers=[])
    later = again.run(states[after])
    assert later.round == end.round == 4 and same_bits(later.tensors, end.tensors)
    assert len(again.asks) == 3 - after
    for ours, theirs in zip(again.asks, tiny.asks[after + 1 :], strict=True):
        assert (ours.participants, ours.task, ours.version, ours.options) == (
            theirs.participants, theirs.task, theirs.version, theirs.options,
        )  # fmt: skip
        assert same_bits(ours.tensors, theirs.tensors)


def test_a_finished_stage_asks_nothing() -> None:
    tiny = learning(rounds=2)
    end = tiny.run()
    tiny.asks.clear()
    assert tiny.run(end) is end and tiny.asks == []


def test_run_gives_answers_to_asks_and_states_to_be_kept() -> None:
    state = State("toy", 0, {"parameters": torch.zeros(1)}, "layout", ())
    asks = [
        Sum(("a",), "first", {}, state.version),
        Collect(("b",), "second", {}, state.version, {"k": 1}),
    ]
    replies: list[Answer] = [Total({}, 1.0, 1, 1), Answers({"b": Reply({})})]
    seen: list[object] = []

    def toy() -> Flow:
        seen.append((yield asks[0]))
        seen.append((yield replace(state, round=1)))
        seen.append((yield asks[1]))
        return replace(state, round=2)

    keeps: list[State] = []
    end = run(toy(), lambda ask: replies[asks.index(ask)], keeps.append)
    assert seen == [replies[0], None, replies[1]]
    assert [kept_state.round for kept_state in keeps] == [1] and end.round == 2


def test_an_error_of_the_fleet_ends_the_run_and_is_not_swallowed() -> None:
    tiny = learning()

    def broken(ask: Ask) -> Answer:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(tiny.flow(tiny.start), broken, lambda state: None)


def test_messages_are_values() -> None:
    version = Version("known", 1, "layout")
    with pytest.raises(FrozenInstanceError):
        version.round = 2  # type: ignore[misc]
    assert State("known", 1, {}, "layout", ()).version == version
    assert Sum((), "x", {}, version).options == {} and Reply({}).metrics == {}


def test_a_mean_divides_floats_and_leaves_counters() -> None:
    total = Total({"p": torch.tensor([2.0, 6.0]), "n": torch.tensor([9])}, 4.0, 2, 2)
    mean = total.mean()
    assert mean["p"].tolist() == [0.5, 1.5] and mean["n"].tolist() == [9]
    assert NOTHING.mean() == {}
