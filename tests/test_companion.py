"""A module beside the network: laid out flat, trained by the same step, and reproducible."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from asterism.companion import Companion, fresh
from asterism.data.augment import plain
from asterism.model import Architecture
from asterism.seeds import generator
from asterism.site import Share
from asterism.training import Batch, Step, Train, fit
from asterism.worker import Worker
from tests.synthetic import SHAPE

CPU = torch.device("cpu")


def projector() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 4))


def test_parameters_are_views_into_one_vector() -> None:
    companion = Companion(projector(), CPU)
    companion.load(torch.arange(companion.parameters.numel()).float())
    first = companion.named[0]
    assert torch.equal(first.flatten(), torch.arange(first.numel()).float())
    taken = companion.take()
    companion.parameters.zero_()
    assert taken[1] == 1 and first.abs().sum() == 0


def test_a_vector_of_another_module_is_refused() -> None:
    with pytest.raises(ValueError, match="3 parameters are not the"):
        Companion(projector(), CPU).load(torch.zeros(3))


def test_a_module_with_buffers_is_refused() -> None:
    with pytest.raises(ValueError, match="must have no buffers"):
        Companion(nn.BatchNorm1d(3), CPU)


def test_a_fresh_vector_depends_on_seed_and_stage_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = fresh(projector, 7, "novel-1"), fresh(projector, 7, "novel-2")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(fresh(projector, 7, "novel-1"), one) and not torch.equal(one, other)


def test_it_trains_as_the_library_optimiser_would_train_it(share: Share) -> None:
    worker = Worker.of(Architecture(name="small"), SHAPE, 4, 7)
    companion = worker.companion("projector", projector)
    assert worker.companion("projector", projector) is companion
    companion.load(fresh(projector, 7, "novel-1"))
    start, reference = companion.take(), Companion(projector(), CPU)
    reference.load(start)
    train = Train(batch=len(share), local_epochs=1, lr=0.1, weight_decay=0.01)

    def step() -> Step:
        def take(pixels: torch.Tensor, labels: torch.Tensor) -> Batch:
            images = plain(pixels)
            z = worker.network.represent(images)
            return Batch(images, z, cross_entropy(companion.module(z.detach()), labels))

        return take

    worker.network.eval()
    z = worker.network.represent(plain(share.images.pixels[share.indices])).detach()
    cross_entropy(reference.module(z), share.targets[share.indices]).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(reference.module.parameters(), lr=0.1, weight_decay=0.01).step()
    fit(worker, share, step, train, lr=0.1, rng=generator(4, "batches"), batch_statistics=False, companion=companion)
    assert not torch.equal(companion.parameters, start)
    torch.testing.assert_close(companion.parameters, reference.parameters)
