"""FedProx's pull against the derivative of its proximal term."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asterism.federated import Federation, FedProx, fedprox
from asterism.seeds import generator
from asterism.site import Site
from asterism.training import Term
from asterism.worker import Worker
from tests.synthetic import Tiny, same_bits


def term(worker: Worker, origin: Tensor, mu: float) -> Term:
    site = Site("site-0", lambda stage: pytest.fail("no images are needed"), {}, worker)
    return fedprox.start(site, {**worker.take(), "parameters": origin}, FedProx(mu=mu))


@given(st.floats(0, 10), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_pull_is_the_derivative_of_the_proximal_term(mu: float, seed: int) -> None:
    tiny = Tiny()
    w = torch.randn(tiny.worker.layout.size, generator=generator(seed, "w")).requires_grad_()
    origin = torch.randn(tiny.worker.layout.size, generator=generator(seed, "origin"))
    (expected,) = torch.autograd.grad(mu / 2 * (w - origin).square().sum(), w)
    gradient = torch.full_like(origin, 0.25)
    correct = term(tiny.worker, origin, mu).correct
    assert correct is not None
    correct(gradient, w)
    torch.testing.assert_close(gradient, 0.25 + expected)
    assert not gradient.requires_grad


def test_without_mu_it_is_fedavg_to_the_bit() -> None:
    prox, average = Tiny(Federation(algorithm=FedProx(mu=0.0), clients=2)), Tiny()
    assert same_bits(prox.run().tensors, average.run().tensors)


def test_a_stronger_pull_keeps_the_model_nearer_to_where_it_began() -> None:
    moved = []
    for mu in (0.0, 1.0, 5.0):
        tiny = Tiny(Federation(algorithm=FedProx(mu=mu), clients=3))
        end = tiny.run()
        moved.append(float((end.tensors["parameters"] - tiny.start.tensors["parameters"]).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_the_origin_is_what_was_sent_not_what_training_makes_of_it(worker: Worker) -> None:
    sent = worker.take()
    site = Site("site-0", lambda stage: pytest.fail("no images are needed"), {}, worker)
    correct = fedprox.start(site, sent, FedProx(mu=2.0)).correct
    worker.parameters.add_(1.0)
    gradient = torch.zeros_like(worker.parameters)
    assert correct is not None
    correct(gradient, worker.parameters)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 2.0), rtol=1e-5, atol=1e-5)


def test_neither_store_nor_message_is_needed(worker: Worker) -> None:
    made = term(worker, worker.take()["parameters"], 0.1)
    assert made.finish(worker, 3, 0.1) == {}
    assert made.momentum is None and made.loss is None
