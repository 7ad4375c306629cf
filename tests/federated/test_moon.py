"""MOON's term by hand, and that its reference models look without touching anything."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asterism.data.augment import plain
from asterism.federated import Federation, Moon, moon
from asterism.flow import Tensors
from asterism.model import Architecture, grow
from asterism.site import Site
from asterism.training import Batch
from asterism.worker import Worker
from tests.synthetic import SHAPE, Tiny, copied, pictures, same_bits

PARTS = ("parameters", "buffers", "counters")


def fresh(seed: int = 7) -> Worker:
    return Worker.of(Architecture(name="small"), SHAPE, 4, seed)


def site(worker: Worker, store: dict[str, Tensors]) -> Site:
    return Site("site-0", lambda stage: pytest.fail("no images are needed"), store, worker)


def batch(worker: Worker) -> Batch:
    images = plain(pictures(2).pixels)
    return Batch(images, worker.network.train().represent(images), torch.zeros(()))


def in_eval(tensors: Tensors, images: Tensor) -> Tensor:
    """Representations by a network of its own that holds these tensors."""
    other = fresh(seed=99)
    other.load({name: tensors[name] for name in PARTS})
    with torch.no_grad():
        return other.network.eval().represent(images)


def own(seed: int) -> dict[str, Tensor]:
    """A model whose running statistics are its own as well."""
    worker = fresh(seed)
    with torch.no_grad():
        worker.network.train()(plain(pictures(3, seed=seed).pixels))
    return worker.take()


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float((a @ b) / (a.norm() * b.norm()))


def test_a_client_that_never_trained_skips_the_term() -> None:
    worker, store = fresh(), dict[str, Tensors]()
    term = moon.start(site(worker, store), worker.take(), Moon())
    assert term.loss is None and term.correct is None
    assert term.finish(worker, 1, 0.1) == {}
    assert same_bits(store["moon"], worker.take())


def test_the_first_round_of_fresh_clients_is_fedavg_to_the_bit() -> None:
    contrast, average = Tiny(Federation(algorithm=Moon(), clients=3)), Tiny(Federation(clients=3))
    states: list[list[Tensors]] = [[], []]
    for tiny, kept in zip((contrast, average), states, strict=True):
        tiny.run(keep=lambda state, kept=kept: kept.append(state.tensors))  # type: ignore[misc]
    assert same_bits(states[0][0], states[1][0])
    assert not same_bits(states[0][1], states[1][1])


@pytest.mark.parametrize(("mu", "temperature"), [(1.0, 0.5), (0.3, 2.0)])
def test_the_term_is_the_printed_formula(mu: float, temperature: float) -> None:
    worker, of_global, previous = fresh(), own(1), own(2)
    worker.load(own(3))
    term = moon.start(site(worker, {"moon": previous}), of_global, Moon(mu=mu, temperature=temperature))
    seen = batch(worker)
    near, far = in_eval(of_global, seen.images), in_eval(previous, seen.images)
    expected = 0.0
    for z, towards, away in zip(seen.z.detach(), near, far, strict=True):
        a, b = math.exp(cosine(z, towards) / temperature), math.exp(cosine(z, away) / temperature)
        expected -= math.log(a / (a + b)) / len(near)
    assert term.loss is not None
    assert float(term.loss(seen).detach()) == pytest.approx(mu * expected, rel=1e-5)
    assert expected > 0.01


def test_only_the_trained_network_gets_a_gradient() -> None:
    worker, of_global, previous = fresh(), own(1), own(2)
    worker.load(own(3))
    term = moon.start(site(worker, {"moon": previous}), of_global, Moon())
    assert term.loss is not None
    term.loss(batch(worker)).backward()  # type: ignore[no-untyped-call]
    trained = [p.grad for p in worker.network.extractor.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in trained)
    for purpose in ("global", "previous"):
        assert all(p.grad is None for p in worker.twin(purpose).network.parameters())


def test_reference_models_stay_as_they_are_and_in_eval_mode() -> None:
    worker, of_global, previous = fresh(), own(1), own(2)
    before = copied(of_global), copied(previous)
    term = moon.start(site(worker, {"moon": previous}), of_global, Moon())
    assert term.loss is not None
    for _ in range(3):
        term.loss(batch(worker))
    assert same_bits(worker.twin("global").take(), before[0]) and same_bits(of_global, before[0])
    assert same_bits(worker.twin("previous").take(), before[1]) and same_bits(previous, before[1])
    assert not any(worker.twin(purpose).network.training for purpose in ("global", "previous"))
    assert not torch.equal(before[0]["buffers"], before[1]["buffers"])


def test_looking_through_the_references_moves_no_statistics_of_the_trained_network() -> None:
    worker = fresh()
    worker.load(own(3))
    seen = batch(worker)
    after_own_pass = worker.take()
    term = moon.start(site(worker, {"moon": own(2)}), own(1), Moon())
    assert term.loss is not None
    term.loss(seen)
    assert same_bits(worker.take(), after_own_pass)
    assert worker.network.training


def test_without_mu_whole_rounds_are_fedavg_to_the_bit() -> None:
    contrast, average = Tiny(Federation(algorithm=Moon(mu=0.0), clients=3)), Tiny(Federation(clients=3))
    assert same_bits(contrast.run().tensors, average.run().tensors)
    assert all("moon" in store for store in contrast.stores.values())


def test_the_previous_model_is_the_last_one_trained_here() -> None:
    tiny = Tiny(Federation(algorithm=Moon(), clients=1), shares={"alone": torch.arange(48)})
    end = tiny.run()
    assert same_bits(tiny.stores["alone"]["moon"], end.tensors)  # one client: the mean is its own model


@pytest.mark.parametrize("rows", [2, 6])
def test_models_from_before_a_change_of_the_head_still_serve(rows: int) -> None:
    worker, previous = fresh(), own(2)
    first = moon.start(site(worker, {"moon": previous}), own(1), Moon())
    now = own(3)
    head = torch.ones(rows, worker.layout.features)
    now["parameters"] = grow(now["parameters"][: worker.layout.extractor_size], head)
    worker.load(now)
    term = moon.start(site(worker, {"moon": previous}), now, Moon())
    seen = batch(worker)
    assert first.loss is not None and term.loss is not None
    loss = term.loss(seen).detach()
    same_extractor = {**now, "parameters": own(3)["parameters"]}
    near, far = in_eval(same_extractor, seen.images), in_eval(previous, seen.images)
    z = seen.z.detach()
    gap = torch.cosine_similarity(z, far) - torch.cosine_similarity(z, near)
    torch.testing.assert_close(loss, (gap / 0.5).exp().log1p().mean())
