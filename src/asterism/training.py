"""The only local training loop, the one step it repeats, and the learning rate over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asterism import fused
from asterism.companion import Companion
from asterism.config import Section
from asterism.graphs import Replayed
from asterism.model import Speed, compiled
from asterism.site import Share
from asterism.worker import Worker


class Train(Section):
    """Local training; batch, learning rate and epochs are the paper's, the rest it leaves open (departures.md)."""

    batch: Annotated[int, Field(ge=2)] = 256  # one image gives no batch statistics
    local_epochs: Annotated[int, Field(ge=1)] = 10
    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"  # over the rounds of a stage
    warmup: Annotated[int, Field(ge=0)] = 0  # rounds of linear increase before it
    leftover: Annotated[float, Field(ge=0, le=1)] = 0.25  # least share of a batch that an epoch's last one must fill
    clip: Annotated[float, Field(gt=0)] | None = None  # the longest gradient that a step may take


def learning_rate(train: Train, round: int, rounds: int) -> float:
    """The learning rate of a round (from 0): linear warm-up, then constant or half a cosine."""
    if round < train.warmup:
        return train.lr * (round + 1) / train.warmup
    if train.schedule == "constant":
        return train.lr
    done = (round - train.warmup) / max(1, rounds - train.warmup)
    return train.lr * (1 + math.cos(math.pi * done)) / 2


def ramp_up(progress: float) -> float:
    """exp(−5(1 − t)²), by which a loss that trusts predictions comes in; 1 from ``progress`` t = 1 on."""
    return math.exp(-5 * (1 - min(1.0, progress)) ** 2)


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
    ``variant`` tells apart terms of one algorithm that compute different things.
    """

    correct: Callable[[Tensor, Tensor], object] | None = None
    loss: Callable[[Batch], Tensor] | None = None
    finish: Callable[[Worker, int, float], Mapping[str, Tensor]] = _nothing
    momentum: float | None = None
    variant: str = ""


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


class Program:
    """One local step, with all that it reads and writes in tensors that keep their place."""

    def __init__(
        self,
        worker: Worker,
        share: Share,
        step: Step,
        term: Term,
        train: Train,
        frozen_rows: int,
        companion: Companion | None,
    ) -> None:
        self.worker, self.step, self.term, self.companion = worker, step, term, companion
        self.pixels, self.targets = share.images.pixels, share.targets
        self.momentum = train.momentum if term.momentum is None else term.momentum
        self.weight_decay, self.clip = train.weight_decay, train.clip
        self.descend = _descending(worker.speed)
        self.descents = [_descent(worker.parameters, worker.gradient, worker.fixed(frozen_rows))]
        if companion is not None:
            self.descents.append(_descent(companion.parameters, companion.gradient, ()))
        self.lr = torch.zeros((), device=worker.device)
        self.sums: dict[str, Tensor] = {}
        replays = worker.speed.graphs and worker.device.type == "cuda"
        searched = train.batch if worker.speed.search else 0
        generators = worker.generators.values()
        self.run: Callable[[Tensor], None] = Replayed(self, generators, searched) if replays else self

    def begin(self, lr: float) -> None:
        """Makes ready for another client's round."""
        self.lr.fill_(lr)
        for value in (*(velocity for _, _, velocity, _ in self.descents), *self.sums.values()):
            value.zero_()

    def __call__(self, chosen: Tensor) -> None:
        """One step of SGD on the images at these rows."""
        worker = self.worker
        worker.halve()
        batch = self.step(self.pixels[chosen], self.targets[chosen])
        loss = batch.loss if self.term.loss is None else batch.loss + self.term.loss(batch)
        worker.differentiate(loss, self.companion)
        with torch.no_grad():
            if self.term.correct is not None:
                self.term.correct(worker.gradient, worker.parameters)
            if self.clip is not None:
                shorten([gradient for _, gradient, _, _ in self.descents], self.clip)
            for vector, gradient, velocity, fixed in self.descents:
                self.descend(vector, gradient, velocity, self.lr, self.momentum, self.weight_decay, fixed)
            for name, value in {"loss": loss, **batch.monitors}.items():
                self.sums.setdefault(name, torch.zeros_like(value)).add_(value)


Descent = tuple[Tensor, Tensor, Tensor, Sequence[tuple[int, int]]]  # vector, gradient, velocity, what must not move


def _descending(speed: Speed) -> Callable[..., None]:
    if speed.fused:
        return fused.descend
    return compiled(descend) if speed.compiled else descend


def _descent(vector: Tensor, gradient: Tensor, fixed: Sequence[tuple[int, int]]) -> Descent:
    return vector, gradient, torch.zeros_like(vector), fixed


def fit(
    worker: Worker,
    share: Share,
    step: Callable[[], Step],
    train: Train,
    *,
    lr: float,
    rng: torch.Generator,
    term: Term | None = None,
    frozen_rows: int = 0,
    batch_statistics: bool = True,
    companion: Companion | None = None,
    program: str | None = None,
) -> Fitted:
    """Trains the worker's network on a share by SGD; the first ``frozen_rows`` head rows keep their bits.

    Args:
        worker: what to train with.
        share: what to train on.
        step: makes the step.
        train: batch size, epochs and the optimiser.
        lr: the learning rate of this round.
        rng: shuffles the images.
        term: what the FL algorithm adds.
        frozen_rows: head rows that must not move.
        batch_statistics: without, normalisation layers stay as they are and use their running statistics.
        companion: a module that is trained beside the network.
        program: a name of all that step and term compute. With one, a worker that replays graphs goes on with the
            step it has of that name; the new step only fills the tensors that are held for it.
    """
    term = term or Term()
    # One image cannot give batch statistics: such a participant trains with the running ones.
    batch_statistics = batch_statistics and len(share) > 1
    made = step()
    name = None if program is None else (program, term.variant, batch_statistics, share.images.pixels.data_ptr())
    work = _program(worker, name, lambda: Program(worker, share, made, term, train, frozen_rows, companion))
    work.begin(lr)
    steps = images = 0
    with worker.training(batch_statistics):
        for chosen in batches(share.indices, train, rng):
            work.run(chosen)
            steps, images = steps + 1, images + len(chosen)
    summed = {name: float(value) for name, value in work.sums.items()} if steps else {"loss": 0.0}
    return Fitted(steps, images, summed.pop("loss"), summed)


def _program(worker: Worker, name: tuple[object, ...] | None, make: Callable[[], Program]) -> Program:
    if name is None or not worker.speed.graphs:
        return make()
    if name not in worker.programs:
        worker.programs[name] = make()
    program: Program = worker.programs[name]
    return program


def batches(indices: Tensor, train: Train, rng: torch.Generator) -> Iterator[Tensor]:
    """Mini-batches of image rows, shuffled anew each epoch; all of them in one where they do not fill a batch.

    A left-over that fills too little of a batch is dropped, a single image always.
    """
    least = max(2, math.ceil(train.leftover * train.batch))
    orders = [torch.randperm(len(indices), generator=rng) for _ in range(train.local_epochs)]
    # One copy to the device for all epochs, which it would otherwise have to wait for in each.
    for order in torch.stack(orders).to(indices.device):
        for chosen in torch.split(order, train.batch):
            if len(chosen) >= least or 0 < len(chosen) == len(indices):
                yield indices[chosen]


def shorten(gradients: Sequence[Tensor], longest: float) -> None:
    """Scales gradients, in place and all by the same factor, to at most this length together."""
    length = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_((longest / length).clamp_max(1))


def descend(
    parameters: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    fixed: Sequence[tuple[int, int]],
) -> None:
    """One SGD step on the flat vector, in place.

    In the ranges ``fixed`` velocity stays zero, hence neither momentum nor weight decay moves them.
    """
    velocity.mul_(momentum).add_(gradient.add(parameters, alpha=weight_decay))
    for start, end in fixed:
        velocity[start:end] = 0
    parameters.addcmul_(velocity, lr, value=-1)
