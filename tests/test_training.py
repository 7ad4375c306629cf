"""The local loop: plain SGD on the flat vector, what it leaves alone, and the learning rate over rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import cross_entropy

from asterism.algorithms.known import Known
from asterism.data.augment import plain
from asterism.federated import FEDERATED, Federation
from asterism.flow import State
from asterism.model import Architecture, grow
from asterism.seeds import generator
from asterism.site import Share, Site
from asterism.training import Batch, Step, Term, Train, batches, descend, fit, learning_rate, shorten
from asterism.worker import Worker
from tests.synthetic import SHAPE, Tiny, copied, pictures, same_bits

ONCE = Train(batch=16, local_epochs=1)


def step_of(worker: Worker) -> Callable[[], Step]:
    """Makes steps of cross entropy on images as they are."""

    def step(pixels: Tensor, labels: Tensor) -> Batch:
        images = plain(pixels)
        z = worker.network.represent(images)
        return Batch(images, z, cross_entropy(z @ worker.network.prototypes.T, labels))

    return lambda: step


def fresh(rows: int = 4, name: str = "small") -> Worker:
    return Worker.of(Architecture(name=name), SHAPE, rows, 7)


def part(share: Share, count: int) -> Share:
    return Share(share.images, share.targets, share.indices[:count])


def rng() -> torch.Generator:
    return generator(4, "test batches")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4, 0.1])
def test_steps_equal_those_of_the_library_optimiser(share: Share, momentum: float, weight_decay: float) -> None:
    train = Train(batch=16, local_epochs=4, momentum=momentum, weight_decay=weight_decay)
    ours, theirs = fresh(), fresh()
    fit(ours, share, step_of(ours), train, lr=0.05, rng=rng())
    optimiser = torch.optim.SGD(theirs.network.parameters(), 0.05, momentum=momentum, weight_decay=weight_decay)
    step = step_of(theirs)()
    theirs.network.train()
    for chosen in batches(share.indices, train, rng()):
        optimiser.zero_grad(set_to_none=False)
        step(share.images.pixels[chosen], share.targets[chosen]).loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-6, atol=1e-7)
    assert not torch.equal(ours.parameters, fresh().parameters)
    assert torch.equal(ours.counters, theirs.counters)


def test_gradients_of_one_step_do_not_reach_the_next(share: Share) -> None:
    worker = fresh()
    worker.gradient.fill_(1e6)
    fit(worker, share, step_of(worker), ONCE, lr=0.05, rng=rng())
    other = fresh()
    fit(other, share, step_of(other), ONCE, lr=0.05, rng=rng())
    assert torch.equal(worker.parameters, other.parameters)


def test_running_statistics_and_counters_move(share: Share, worker: Worker) -> None:
    before = worker.take()
    fitted = fit(worker, share, step_of(worker), Train(batch=16, local_epochs=2), lr=0.05, rng=rng())
    assert worker.counters.tolist() == [6, 6, 6] and fitted.steps == 6
    assert not torch.equal(worker.buffers, before["buffers"])


def test_one_image_is_trained_on_with_running_statistics(share: Share, worker: Worker) -> None:
    before = worker.take()
    fitted = fit(worker, part(share, 1), step_of(worker), Train(batch=16, local_epochs=3), lr=0.05, rng=rng())
    assert (fitted.steps, fitted.images) == (3, 3)
    assert not torch.equal(worker.parameters, before["parameters"])
    assert torch.isfinite(worker.parameters).all()
    assert torch.equal(worker.buffers, before["buffers"]) and torch.equal(worker.counters, before["counters"])


def test_two_images_are_trained_on_with_their_own_statistics(share: Share, worker: Worker) -> None:
    fit(worker, part(share, 2), step_of(worker), ONCE, lr=0.05, rng=rng())
    assert worker.counters.tolist() == [1, 1, 1]


def test_what_was_done_is_told_in_amounts(share: Share, worker: Worker) -> None:
    losses: list[float] = []
    step = step_of(worker)()

    def noted(pixels: Tensor, labels: Tensor) -> Batch:
        batch = step(pixels, labels)
        losses.append(float(batch.loss.detach()))
        return batch

    fitted = fit(worker, part(share, 33), lambda: noted, Train(batch=16, local_epochs=2), lr=0.05, rng=rng())
    assert fitted.metrics == {"steps": 4.0, "images": 64.0, "loss": pytest.approx(sum(losses))}


@given(st.integers(2, 60), st.integers(2, 20), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_each_image_comes_once_an_epoch_but_for_a_single_left_over(n: int, size: int, epochs: int, seed: int) -> None:
    indices = torch.arange(100, 100 + n)
    train = Train(batch=size, local_epochs=epochs, leftover=0)
    chosen = list(batches(indices, train, generator(seed, "test")))
    per_epoch = math.ceil(n / size) - (n % size == 1)
    assert len(chosen) == epochs * per_epoch
    for e in range(epochs):
        epoch = torch.cat(chosen[e * per_epoch : (e + 1) * per_epoch]).tolist()
        assert set(epoch) <= set(indices.tolist()) and len(set(epoch)) == len(epoch) == n - (n % size == 1)
    assert all(1 < len(batch) <= size for batch in chosen)


@given(st.integers(2, 60), st.integers(2, 20), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_left_over_is_trained_on_where_it_fills_enough_of_a_batch(n: int, size: int, least: float, seed: int) -> None:
    train = Train(batch=size, local_epochs=1, leftover=least)
    chosen = [batch.tolist() for batch in batches(torch.arange(100, 100 + n), train, generator(seed, "test"))]
    rest = n % size
    kept = [rest] if n < size or (rest > 1 and rest >= least * size) else []
    assert [len(batch) for batch in chosen] == [size] * (n // size) + kept
    rows = [row for batch in chosen for row in batch]
    assert len(set(rows)) == len(rows) and set(rows) <= set(range(100, 100 + n))


def test_a_gradient_is_shortened_and_never_lengthened() -> None:
    one, two = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    shorten([one, two], 1.0)
    torch.testing.assert_close(torch.cat([one, two]), torch.tensor([0.6, 0.0, 0.8]))
    shorten([one, two], 10.0)
    torch.testing.assert_close(torch.cat([one, two]), torch.tensor([0.6, 0.0, 0.8]))


def test_a_step_goes_no_further_than_its_gradient_may_be_long(share: Share) -> None:
    worker = fresh()
    before = worker.parameters.clone()
    train = Train(batch=len(share), local_epochs=1, momentum=0, weight_decay=0, clip=0.01)
    fit(worker, share, step_of(worker), train, lr=1.0, rng=rng())
    assert float((worker.parameters - before).norm()) == pytest.approx(0.01, rel=1e-3)


def test_epochs_are_shuffled_anew_and_by_the_given_generator_only() -> None:
    train = Train(batch=50, local_epochs=2)
    torch.manual_seed(1)
    first, second = (batch.tolist() for batch in batches(torch.arange(50), train, rng()))
    torch.manual_seed(2)
    assert [first, second] == [batch.tolist() for batch in batches(torch.arange(50), train, rng())]
    assert first != second and Counter(first) == Counter(second) == Counter(range(50))


def test_one_image_alone_is_a_batch_and_no_image_is_none() -> None:
    train = Train(batch=8, local_epochs=2)
    assert [batch.tolist() for batch in batches(torch.tensor([41]), train, rng())] == [[41], [41]]
    assert list(batches(torch.arange(0), train, rng())) == []


def test_batches_of_one_image_are_refused_as_a_setting() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        Train(batch=1)


def test_a_term_changes_gradient_loss_momentum_and_what_is_sent(share: Share, worker: Worker) -> None:
    def correct(gradient: Tensor, parameters: Tensor) -> None:
        assert parameters is worker.parameters
        gradient.zero_()

    before = worker.take()
    still = Term(correct=correct)
    fit(worker, share, step_of(worker), Train(batch=16, local_epochs=1, weight_decay=0), lr=1.0, rng=rng(), term=still)
    assert torch.equal(worker.parameters, before["parameters"])
    assert Term().finish(worker, 1, 0.1) == {}


def test_a_loss_added_twice_is_a_gradient_twice_as_long(share: Share) -> None:
    doubled, plainly = fresh(), fresh()
    term = Term(loss=lambda batch: batch.loss, momentum=0.0)
    with_momentum, without = (Train(batch=16, local_epochs=1, momentum=m, weight_decay=0) for m in (0.9, 0.0))
    twice = fit(doubled, share, step_of(doubled), with_momentum, lr=1 / 16, rng=rng(), term=term)
    once = fit(plainly, share, step_of(plainly), without, lr=1 / 8, rng=rng())
    assert torch.equal(doubled.parameters, plainly.parameters)
    assert twice.loss == pytest.approx(2 * once.loss)


def test_a_step_leaves_fixed_entries_alone_whatever_the_gradient() -> None:
    worker = fresh(name="tests.synthetic:FrozenStem")
    before = worker.take()["parameters"]
    velocity = torch.zeros_like(worker.parameters)
    for _ in range(3):
        worker.gradient.fill_(float("nan"))
        worker.gradient[60 : worker.layout.extractor_size] = 1.0
        worker.gradient[-worker.layout.features :] = 1.0
        with torch.no_grad():
            descend(worker.parameters, worker.gradient, velocity, torch.tensor(0.1), 0.9, 5e-4, worker.fixed(3))
    fixed = [slice(0, 60), slice(worker.layout.extractor_size, -worker.layout.features)]
    assert all(same_bits({"p": worker.parameters[s]}, {"p": before[s]}) for s in fixed)
    moved = worker.parameters != before
    assert moved[60 : worker.layout.extractor_size].all() and moved[-worker.layout.features :].all()


def test_a_frozen_part_of_a_backbone_keeps_its_bits_in_training(share: Share) -> None:
    worker = fresh(name="tests.synthetic:FrozenStem")
    before = worker.take()["parameters"]
    train = Train(batch=16, local_epochs=2, momentum=0.9, weight_decay=0.1)
    fit(worker, share, step_of(worker), train, lr=0.1, rng=rng())
    assert same_bits({"p": worker.parameters[:60]}, {"p": before[:60]})
    assert (worker.parameters[60:] != before[60:]).any()


@pytest.mark.parametrize("name", sorted(FEDERATED))
@pytest.mark.parametrize("frozen", [0, 1, 4])
def test_frozen_rows_keep_their_bits_under_every_algorithm_after_growth(name: str, frozen: int) -> None:
    federation = Federation.model_validate({"algorithm": {"name": name}})
    tiny = Tiny(federation, Known(rounds=1))
    state = tiny.run()  # leaves variates and previous models behind
    tensors = grown(tiny, state)
    algorithm, site = FEDERATED[name], tiny.site("site-0")
    before = copied(tensors)
    for _ in range(2):
        site.worker.load(tensors)
        term = algorithm.start(site, tensors, federation.algorithm, 1.0)
        train = Train(batch=8, local_epochs=2, momentum=0.9, weight_decay=5e-4)
        share = novel_share(site)
        done = fit(site.worker, share, step_of(site.worker), train, lr=0.05, rng=rng(), term=term, frozen_rows=frozen)
        tensors = {**tensors, **site.worker.take()}
        term.finish(site.worker, done.steps, 0.05)
    layout = site.worker.layout
    rows, old = layout.head(tensors["parameters"]), layout.head(before["parameters"])
    assert layout.rows == 6
    assert same_bits({"rows": rows[:frozen]}, {"rows": old[:frozen]})
    assert (rows[frozen:] != old[frozen:]).any(dim=1).all()
    assert (tensors["parameters"][: layout.extractor_size] != before["parameters"][: layout.extractor_size]).any()


def grown(tiny: Tiny, state: State) -> dict[str, Tensor]:
    """A state's tensors with two further head rows."""
    rows = torch.randn(2, tiny.worker.layout.features, generator=generator(5, "rows"))
    return {**state.tensors, "parameters": grow(state.tensors["parameters"], rows)}


def novel_share(site: Site) -> Share:
    """Images of two classes, as rows 4 and 5."""
    share = site.share("novel-1")
    targets = share.targets % 2 + 4
    return Share(share.images, targets, share.indices)


def test_a_constant_rate_stays_and_a_cosine_ends_above_zero() -> None:
    constant = Train(lr=0.1, schedule="constant")
    assert [learning_rate(constant, t, 5) for t in range(5)] == [0.1] * 5
    cosine = [learning_rate(Train(lr=0.1), t, 30) for t in range(30)]
    assert cosine[0] == 0.1 and cosine[15] == pytest.approx(0.05)
    assert all(a > b > 0 for a, b in pairwise(cosine))
    assert cosine[-1] == pytest.approx(0.1 * (1 + math.cos(math.pi * 29 / 30)) / 2)
    assert learning_rate(Train(lr=0.1), 0, 1) == 0.1


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_warm_up_rises_linearly_to_the_full_rate(schedule: Any) -> None:
    train = Train(lr=0.4, schedule=schedule, warmup=4)
    rates = [learning_rate(train, t, 10) for t in range(10)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert all(0 < rate <= 0.4 for rate in rates)
    assert (rates[-1] == 0.4) == (schedule == "constant")


def test_a_warm_up_as_long_as_the_stage_never_divides_by_zero() -> None:
    assert [learning_rate(Train(lr=0.2, warmup=2), t, 2) for t in range(2)] == pytest.approx([0.1, 0.2])


def test_training_learns_easy_pictures(share: Share, worker: Worker) -> None:
    fit(worker, share, step_of(worker), Train(batch=16, local_epochs=20), lr=0.05, rng=rng())
    test = pictures(10, seed=2)
    with torch.no_grad():
        predicted = worker.network.eval()(plain(test.pixels)).argmax(dim=1)
    assert (predicted == test.labels).float().mean() > 0.9
