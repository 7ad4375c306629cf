"""The fast path says what the plain one says: exactly where it only reuses, within a tolerance where it rounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from asterism import model
from asterism.algorithms import represent
from asterism.algorithms.represent import represented
from asterism.data.augment import augment
from asterism.data.settings import Augment
from asterism.graphs import searching
from asterism.model import PLAIN, READING, Architecture, Speed
from asterism.seeds import generator
from asterism.site import Share
from asterism.training import Batch, Step, Train, fit
from asterism.worker import Worker
from tests.synthetic import SHAPE, same_bits

HALF = Speed(half=True, reading=True)
STEPS = 50
TOLERANCE = 0.05  # of the first loss, bfloat16 against float32 at any step; bench/honesty.py asks the same of a GPU


def worker(speed: Speed) -> Worker:
    return Worker.of(Architecture(name="small"), SHAPE, 4, 7, speed=speed)


def trained(fast: Worker, share: Share, *, epochs: int, client: int = 0, losses: list[float] | None = None) -> None:
    """One client's round with augmentation, its draws named by the client; its losses are appended."""
    rng = fast.generator(1, "augment", client)

    def step(pixels: Tensor, labels: Tensor) -> Batch:
        images = augment(pixels, Augment(crop=1, flip=True), rng)
        z = fast.network.represent(images)
        loss = cross_entropy(z @ fast.network.prototypes.T, labels)
        if losses is not None:
            losses.append(float(loss.detach()))
        return Batch(images, z, loss)

    def make() -> Step:
        return step

    train = Train(batch=16, local_epochs=epochs)
    fit(fast, share, make, train, lr=0.01, rng=generator(2, "batches", client), program="test")


def curve(speed: Speed, share: Share) -> Tensor:
    """The losses of fifty steps on the same batches."""
    losses: list[float] = []
    trained(worker(speed), share, epochs=17, losses=losses)
    return torch.tensor(losses[:STEPS])


def test_losses_in_half_precision_follow_those_in_full(share: Share) -> None:
    full, half = curve(PLAIN, share), curve(HALF, share)
    assert len(full) == STEPS and full[-1] < 0.8 * full[0]
    assert not torch.equal(full, half)
    assert (half - full).abs().max() < TOLERANCE * full[0]


def test_a_step_that_is_used_again_trains_the_next_client_to_the_same_bits(share: Share) -> None:
    plain, reused = worker(PLAIN), worker(Speed(graphs=True))
    for client in range(3):
        for one in (plain, reused):
            trained(one, share, epochs=2, client=client)
        assert same_bits(plain.take(), reused.take())
    assert (len(plain.programs), len(reused.programs)) == (0, 1)


def test_representations_in_half_precision_point_the_same_way(share: Share) -> None:
    full, half = worker(PLAIN), worker(HALF)
    trained(full, share, epochs=4)
    half.load(full.take())
    z, fast = represented(full, share), represented(half, share)
    assert fast.dtype == torch.float32 and not torch.equal(z, fast)
    assert cosine_similarity(z, fast).min() > 0.999
    agree = (z @ full.network.prototypes.T).argmax(1) == (fast @ half.network.prototypes.T).argmax(1)
    assert agree.float().mean() > 0.99


def test_a_network_computes_as_set_between_trainings_too(share: Share) -> None:
    fast = worker(HALF)
    assert fast.network.speed == HALF.at_rest == Speed(half=True)
    with fast.training(batch_statistics=True):
        assert fast.network.speed == HALF
    assert fast.network.speed == HALF.at_rest
    fast.load({**fast.take(), "parameters": torch.cat([fast.parameters, torch.zeros(64)])})
    assert fast.network.speed == HALF.at_rest and fast.layout.rows == 5
    assert worker(Speed(half=True)).network.speed == PLAIN


def test_a_twin_computes_as_in_training_whatever_head_it_is_given() -> None:
    fast = worker(HALF)
    twin = fast.twin("teacher")
    twin.load({**fast.take(), "parameters": fast.parameters[:-64]})
    assert twin.layout.rows == 3 and twin.network.speed == HALF


def test_only_batches_of_the_usual_size_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "compiled", lambda function: "compiled")
    fast = Speed(compiled=32, reading=True, read=READING)
    assert [fast.of(curve, images) is curve for images in (31, 32, 64, 96)] == [True, False, False, True]
    assert fast.at_rest.compiled == READING == represent.BATCH
    assert PLAIN.of(curve, 32) is curve


@pytest.mark.parametrize("wanted", [True, False])
def test_algorithms_are_searched_for_within_the_block_only(wanted: bool) -> None:
    before = torch.backends.cudnn.benchmark
    with searching(wanted):
        assert torch.backends.cudnn.benchmark is wanted
    assert torch.backends.cudnn.benchmark is before
