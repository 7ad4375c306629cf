"""SCAFFOLD against its formulas in NumPy on two quadratics, and variates when the head grows or shrinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asterism.aggregate import answered
from asterism.data.images import ImageSet
from asterism.federated import scaffold
from asterism.federated.scaffold import Scaffold
from asterism.flow import Reply, State, Sum, Tensors, Total
from asterism.model import Architecture
from asterism.seeds import generator
from asterism.site import Share, Site
from asterism.training import Batch, Train, fit
from asterism.worker import Worker
from tests.synthetic import copied, same_bits

Vector = NDArray[np.float64]
SHAPE = (1, 1, 2)  # two pixels and one head row: the model is a vector of two numbers
STEPS, LR = 4, 0.2
TARGETS: Mapping[str, tuple[float, float]] = {"a": (1.0, 2.0), "b": (-3.0, 0.5)}
CURVATURE: Mapping[str, float] = {"a": 1.0, "b": 0.5}
START = (0.3, -0.7)


@dataclass
class Quadratics:
    """Clients a and b minimise h/2·‖w − target‖² by SCAFFOLD, with the code under test."""

    p: Scaffold = field(default_factory=Scaffold)
    stores: dict[str, dict[str, Tensors]] = field(default_factory=lambda: {"a": {}, "b": {}})
    steps: Mapping[str, int] = field(default_factory=lambda: {"a": STEPS, "b": STEPS})

    def __post_init__(self) -> None:
        self.worker = Worker.of(Architecture(name="tests.synthetic:Flat"), SHAPE, 1, seed=1)
        tensors = {**self.worker.take(), "parameters": torch.tensor(START)}
        self.state = State("known", 0, tensors, self.worker.layout.id, ("only",))

    def reply(self, name: str, tensors: Tensors) -> Reply:
        images = ImageSet(torch.zeros(2, *SHAPE, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "xy", ("only",))
        share = Share(images, images.labels, torch.arange(2))
        site = Site(name, lambda stage: share, self.stores[name], self.worker)
        site.worker.load(tensors)
        target, h = torch.tensor(TARGETS[name]), CURVATURE[name]

        def step(pixels: Tensor, labels: Tensor) -> Batch:
            loss = h / 2 * (self.worker.network.prototypes[0] - target).square().sum()
            return Batch(pixels, pixels, loss)

        term = scaffold.start(site, tensors, self.p)
        train = Train(batch=2, local_epochs=self.steps[name], weight_decay=0)  # momentum is SCAFFOLD's own
        done = fit(self.worker, share, lambda: step, train, lr=LR, rng=generator(1, name), term=term)
        sent = {**self.worker.take(), **term.finish(self.worker, done.steps, LR)}
        return Reply(sent, version=self.state.version)

    def round(self, clients: tuple[str, ...]) -> None:
        ask = Sum(clients, "known", self.state.tensors, self.state.version)
        total = answered(ask, [(name, self.reply(name, ask.tensors)) for name in clients])
        assert isinstance(total, Total) and total.failures == ()
        tensors = scaffold.update(self.state, total, participants=2)
        self.state = State("known", self.state.round + 1, tensors, self.state.layout, self.state.classes)

    def variate(self, name: str) -> Tensor:
        return self.stores[name]["scaffold"]["variate"]


@dataclass
class ByHand:
    """The same in NumPy, formula by formula."""

    w: Vector = field(default_factory=lambda: np.array(START))
    c: Vector = field(default_factory=lambda: np.zeros(2))
    own: dict[str, Vector] = field(default_factory=lambda: {"a": np.zeros(2), "b": np.zeros(2)})

    def round(self, clients: tuple[str, ...], steps: Mapping[str, int], momentum: float = 0.0) -> None:
        models, changes = [], []
        for name in clients:
            w, velocity = self.w.copy(), np.zeros(2)
            for _ in range(steps[name]):
                gradient = CURVATURE[name] * (w - np.array(TARGETS[name]))
                velocity = momentum * velocity + gradient - self.own[name] + self.c
                w = w - LR * velocity
            new = self.own[name] - self.c + (self.w - w) / (steps[name] * LR / (1 - momentum))
            models.append(w)
            changes.append(new - self.own[name])
            self.own[name] = new
        self.w = np.mean(models, axis=0)
        self.c = self.c + len(clients) / 2 * np.mean(changes, axis=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "rounds",
    [[("a", "b")] * 3, [("a", "b"), ("a",), ("b",)], [("a",), ("a",), ("b",), ("a", "b")]],
    ids=["all", "then one of two", "one of two"],
)
def test_rounds_equal_the_formulas(rounds: list[tuple[str, ...]], momentum: float) -> None:
    ours, expected = Quadratics(Scaffold(momentum=momentum), steps={"a": 4, "b": 3}), ByHand()
    for clients in rounds:
        ours.round(clients)
        expected.round(clients, ours.steps, momentum)
        np.testing.assert_allclose(ours.state.tensors["parameters"].numpy(), expected.w, atol=1e-5)
        np.testing.assert_allclose(ours.state.tensors["variate"].numpy(), expected.c, atol=1e-5)
        for name, store in ours.stores.items():
            if store:
                np.testing.assert_allclose(ours.variate(name).numpy(), expected.own[name], atol=1e-5)
            else:
                assert not expected.own[name].any()


def test_the_server_variate_moves_by_the_clients_share_of_all_participants() -> None:
    one = Quadratics()
    one.round(("a",))
    torch.testing.assert_close(one.state.tensors["variate"], one.variate("a") / 2)


def test_a_client_variate_is_its_mean_gradient_in_the_first_round() -> None:
    ours = Quadratics(steps={"a": 1, "b": 1})
    ours.round(("a", "b"))
    for name in ("a", "b"):
        gradient = CURVATURE[name] * (torch.tensor(START) - torch.tensor(TARGETS[name]))
        torch.testing.assert_close(ours.variate(name), gradient)


def test_drift_is_taken_out_and_the_common_minimum_found() -> None:
    """Averaging alone stops elsewhere, as clients of unequal curvature take several steps."""
    ours, averaging = Quadratics(steps={"a": 8, "b": 8}), Quadratics(steps={"a": 8, "b": 8})
    for _ in range(60):
        ours.round(("a", "b"))
        averaging.stores = {"a": {}, "b": {}}
        averaging.state.tensors.get("variate", torch.zeros(2)).zero_()
        averaging.round(("a", "b"))
    weights = np.array([CURVATURE[name] for name in "ab"])
    minimum = (weights[:, None] * np.array([TARGETS[name] for name in "ab"])).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(ours.state.tensors["parameters"].numpy(), minimum, atol=1e-3)
    assert np.abs(averaging.state.tensors["parameters"].numpy() - minimum).max() > 0.1


def test_orders_and_stores_are_not_written_into() -> None:
    ours = Quadratics()
    ours.round(("a", "b"))
    sent, store = ours.state.tensors, ours.stores["a"]["scaffold"]
    before = copied(sent), copied(store)
    ours.round(("a", "b"))
    assert same_bits(sent, before[0]) and same_bits(store, before[1])


def test_a_round_without_contributors_keeps_model_and_variate() -> None:
    ours = Quadratics()
    ours.round(("a",))
    total = Total({}, 0.0, 2, 0)
    assert scaffold.update(ours.state, total, 2) is ours.state.tensors


@pytest.mark.parametrize("length", [3, 5])
def test_another_head_begins_with_variates_of_zero(length: int) -> None:
    ours = Quadratics()
    ours.round(("a", "b"))
    ours.worker.load({**ours.state.tensors, "parameters": torch.ones(4)})
    ours.stores["a"]["scaffold"] = {"variate": torch.ones(length)}
    site = Site("a", lambda stage: pytest.fail("no images are needed"), ours.stores["a"], ours.worker)
    tensors = {**ours.state.tensors, "parameters": torch.ones(4), "variate": torch.ones(length)}
    term = scaffold.start(site, tensors, Scaffold())
    gradient = torch.zeros(4)
    assert term.correct is not None
    term.correct(gradient, ours.worker.parameters)
    assert not gradient.any()
    grown = State("novel-1", 0, tensors, ours.worker.layout.id, ("only", "new"))
    updated = scaffold.update(grown, Total({"variate_change": torch.full((4,), 2.0)}, 1.0, 1, 1), 2)
    assert updated["variate"].tolist() == [1.0] * 4


def test_a_drawn_back_extractor_is_corrected_by_the_share_that_is_kept() -> None:
    worker = Worker.of(Architecture(name="small"), (1, 8, 8), 3, 0)
    size, extractor = worker.layout.size, worker.layout.extractor_size
    site = Site("a", lambda stage: pytest.fail("no images are needed"), {}, worker)
    term = scaffold.start(site, {**worker.take(), "variate": torch.ones(size)}, Scaffold(), 0.25)
    gradient = torch.zeros(size)
    assert term.correct is not None
    term.correct(gradient, worker.parameters)
    assert (gradient[:extractor] == 0.25).all() and (gradient[extractor:] == 1).all()


def test_momentum_of_training_is_overruled() -> None:
    ours = Quadratics()
    site = Site("a", lambda stage: pytest.fail("no images are needed"), {}, ours.worker)
    assert scaffold.start(site, ours.state.tensors, Scaffold()).momentum == 0.0
    assert scaffold.start(site, ours.state.tensors, Scaffold(momentum=0.5)).momentum == 0.5
