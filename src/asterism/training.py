"""The only local training loop, and the learning rate over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asterism.config import Section
from asterism.model import Worker
from asterism.site import Share


class Train(Section):
    """Local training; batch, learning rate and epochs are the paper's, the rest it leaves open (departures.md)."""

    batch: Annotated[int, Field(ge=2)] = 256  # one image gives no batch statistics
    local_epochs: Annotated[int, Field(ge=1)] = 10
    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"  # over the rounds of a stage
    warmup: Annotated[int, Field(ge=0)] = 0  # rounds of linear increase before it


def learning_rate(train: Train, round: int, rounds: int) -> float:
    """The learning rate of a round (from 0): linear warm-up, then constant or half a cosine."""
    if round < train.warmup:
        return train.lr * (round + 1) / train.warmup
    if train.schedule == "constant":
        return train.lr
    done = (round - train.warmup) / max(1, rounds - train.warmup)
    return train.lr * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Batch:
    """One mini-batch as a method sees it: prepared images, their representations, and the method's loss."""

    images: Tensor
    z: Tensor
    loss: Tensor
    monitors: Mapping[str, Tensor] = field(default_factory=dict)  # figures to watch, one a batch


Step = Callable[[Tensor, Tensor], Batch]  # uint8 pixels and targets of a mini-batch in, batch out


def _nothing(worker: Worker, steps: int, lr: float) -> Mapping[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Term:
    """What an FL algorithm adds to local training, whatever the method trains; the default adds nothing.

    ``correct`` changes the flat gradient in place given the flat parameters, ``loss`` is added to the method's,
    ``finish`` gives further tensors to send and updates the local store, ``momentum`` overrides the setting.
    """

    correct: Callable[[Tensor, Tensor], object] | None = None
    loss: Callable[[Batch], Tensor] | None = None
    finish: Callable[[Worker, int, float], Mapping[str, Tensor]] = _nothing
    momentum: float | None = None


@dataclass(frozen=True)
class Fitted:
    """What a local training did: optimiser steps, images seen, loss and monitors summed over steps."""

    steps: int
    images: int
    loss: float
    monitors: Mapping[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """As amounts that may be added up over participants."""
        return {"steps": float(self.steps), "images": float(self.images), "loss": self.loss, **self.monitors}


def fit(
    worker: Worker,
    share: Share,
    step: Step,
    train: Train,
    *,
    lr: float,
    rng: torch.Generator,
    term: Term | None = None,
    frozen_rows: int = 0,
    batch_statistics: bool = True,
) -> Fitted:
    """Trains the worker's network on a share by SGD; the first ``frozen_rows`` head rows keep their bits.

    Without ``batch_statistics`` normalisation layers stay as they are and use their running statistics.
    """
    term = term or Term()
    momentum = train.momentum if term.momentum is None else term.momentum
    velocity = torch.zeros_like(worker.parameters)
    sums = {"loss": torch.zeros((), device=worker.device)}
    # One image cannot give batch statistics: such a participant trains with the running ones.
    worker.network.train(batch_statistics and len(share) > 1)
    steps = images = 0
    for chosen in batches(share.indices, train, rng):
        batch = step(share.images.pixels[chosen], share.targets[chosen])
        loss = batch.loss if term.loss is None else batch.loss + term.loss(batch)
        worker.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if term.correct is not None:
            term.correct(worker.gradient, worker.parameters)
        descend(worker, velocity, lr, momentum, train.weight_decay, frozen_rows)
        for name, value in {"loss": loss, **batch.monitors}.items():
            sums[name] = sums.get(name, 0) + value.detach()
        steps, images = steps + 1, images + len(chosen)
    summed = {name: float(value) for name, value in sums.items()}
    return Fitted(steps, images, summed.pop("loss"), summed)


def batches(indices: Tensor, train: Train, rng: torch.Generator) -> Iterator[Tensor]:
    """Mini-batches of image rows, shuffled anew each epoch; a left-over of a single image is left out."""
    for _ in range(train.local_epochs):
        order = torch.randperm(len(indices), generator=rng).to(indices.device)
        for chosen in torch.split(order, train.batch):
            if len(chosen) > 1 or len(indices) == 1:
                yield indices[chosen]


def descend(
    worker: Worker, velocity: Tensor, lr: float, momentum: float, weight_decay: float, frozen_rows: int
) -> None:
    """One SGD step on the flat vector, in place.

    Frozen entries get no gradient, hence neither momentum nor weight decay moves them.
    """
    gradient = worker.gradient
    with torch.no_grad():
        gradient.add_(worker.parameters, alpha=weight_decay)
        for start, end in worker.fixed(frozen_rows):
            gradient[start:end] = 0
        velocity.mul_(momentum).add_(gradient)
        worker.parameters.add_(velocity, alpha=-lr)
