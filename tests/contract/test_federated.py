"""What every FL algorithm owes to known class learning, plain and with rotations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from asterism.algorithms.known import Known, upright
from asterism.federated import FEDERATED, Federation
from asterism.flow import State, Tensors, Total
from asterism.training import Train
from tests.synthetic import Tiny, copied, pictures, resumed, same_bits, thirds

pytestmark = [
    pytest.mark.parametrize("name", sorted(FEDERATED)),
    pytest.mark.parametrize("rotations", [False, True], ids=["plain", "rotations"]),
]


def federation(name: str, rotations: bool, *, clients: int = 2, rounds: int = 2, **others: Any) -> Tiny:
    settings = Federation.model_validate({"algorithm": {"name": name}, "clients": clients})
    return Tiny(settings, Known(rounds=rounds, rotations=rotations), **others)


def totals(tiny: Tiny) -> list[Total]:
    return [answer for answer in tiny.answers if isinstance(answer, Total)]


def moved(tiny: Tiny, state: State) -> bool:
    parameters = state.tensors["parameters"]
    return bool(torch.isfinite(parameters).all()) and not torch.equal(parameters, tiny.start.tensors["parameters"])


def test_same_seed_gives_the_same_bits(name: str, rotations: bool) -> None:
    first, second = federation(name, rotations), federation(name, rotations)
    torch.manual_seed(1)
    once = first.run()
    torch.manual_seed(2)
    torch.rand(5)
    again = second.run()
    assert same_bits(once.tensors, again.tensors)
    assert moved(first, once)
    assert [ask.options for ask in first.asks] == [ask.options for ask in second.asks]
    for participant, store in first.stores.items():
        assert store.keys() == second.stores[participant].keys()
        assert all(same_bits(store[key], second.stores[participant][key]) for key in store)


def test_another_seed_gives_another_model(name: str, rotations: bool) -> None:
    tiny, other = federation(name, rotations), federation(name, rotations, seed=8)
    assert not same_bits(tiny.run().tensors, other.run().tensors)


def test_what_was_sent_is_not_modified(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, rounds=3)
    kept: list[tuple[State, dict[str, torch.Tensor]]] = [(tiny.start, copied(tiny.start.tensors))]
    pixels = tiny.images.pixels.clone()
    tiny.run(keep=lambda state: kept.append((state, copied(state.tensors))))
    assert len(kept) == 4
    assert all(same_bits(state.tensors, at_once) for state, at_once in kept)
    assert torch.equal(tiny.images.pixels, pixels)


def test_resume_is_bit_equal(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, rounds=3)
    kept: list[tuple[State, dict[str, dict[str, Tensors]]]] = []
    end = tiny.run(keep=lambda state: kept.append((state, tiny.copied_stores())))
    first, stores = kept[0]
    later = resumed(tiny, stores)
    assert same_bits(later.run(first).tensors, end.tensors)
    assert [ask.participants for ask in later.asks] == [ask.participants for ask in tiny.asks[1:]]


def test_one_participant_is_enough(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, clients=1, shares={"alone": torch.arange(48)})
    assert moved(tiny, tiny.run())
    assert [total.contributors for total in totals(tiny)] == [1, 1]


def test_an_empty_participant_adds_nothing(name: str, rotations: bool) -> None:
    shares = {**thirds(), "empty": torch.arange(0)}
    with_empty = federation(name, rotations, clients=4, rounds=1, shares=shares)
    without = federation(name, rotations, clients=3, rounds=1)
    end, expected = dict(with_empty.run().tensors), dict(without.run().tensors)
    if name == "scaffold":  # its variate is a mean over all participants, the empty one included
        torch.testing.assert_close(end.pop("variate"), expected.pop("variate") * 3 / 4)
    assert same_bits(end, expected)
    assert [(t.replies, t.contributors, t.failures) for t in totals(with_empty)] == [(4, 3, ())]


def test_a_federation_of_empty_participants_keeps_its_model(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, shares={k: torch.arange(0) for k in thirds()})
    end = tiny.run()
    assert end.round == 2
    assert same_bits(end.tensors, upright(tiny.start, tiny.worker.layout).tensors)


def test_a_participant_with_one_image_takes_part(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, shares={"one": torch.tensor([5]), "many": torch.arange(10, 30)})
    assert moved(tiny, tiny.run())
    assert [(t.contributors, t.failures) for t in totals(tiny)] == [(2, ())] * 2


def test_a_left_over_of_one_image_does_not_stop_a_participant(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, clients=1, shares={"nine": torch.arange(9)})  # batches of 8 and of 1
    assert moved(tiny, tiny.run())
    assert [(t.metrics["steps"], t.metrics["images"]) for t in totals(tiny)] == [(1.0, 8.0)] * 2


def test_a_class_that_no_one_has_keeps_a_finite_row(name: str, rotations: bool) -> None:
    tiny = federation(name, rotations, clients=3, shares={k: v[v < 36] for k, v in thirds().items()})
    end = tiny.run()
    assert moved(tiny, end)
    assert len(end.classes) == 4
    assert [total.failures for total in totals(tiny)] == [(), ()]


def test_easy_classes_are_learned(name: str, rotations: bool) -> None:
    train = Train(batch=8, local_epochs=3, lr=0.1 if name == "scaffold" else 0.03)
    tiny = federation(name, rotations, clients=3, rounds=8, train=train)
    before = tiny.accuracy(tiny.start)
    accuracy = tiny.accuracy(tiny.run())
    assert accuracy > 0.7, f"chance is 0.25, before training {before}"


def test_first_rounds_of_a_longer_stage_draw_the_same_clients(name: str, rotations: bool) -> None:
    short, long = federation(name, rotations), federation(name, rotations, rounds=4)
    short.run()
    long.run()
    assert [a.participants for a in short.asks] == [a.participants for a in long.asks[:2]]


def test_images_of_another_federation_are_never_touched(name: str, rotations: bool) -> None:
    held = {"a": torch.arange(0, 24, 2), "b": torch.arange(1, 24, 2)}
    images = pictures()
    spoiled = images.pixels.clone()
    spoiled[24:] = 0
    labels = images.labels.clone()
    labels[24:] = -1
    tiny = federation(name, rotations, shares=held)
    other = federation(name, rotations, shares=held, images=replace(images, pixels=spoiled, labels=labels))
    assert same_bits(tiny.run().tensors, other.run().tensors)
