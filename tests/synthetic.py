"""A federation of moments: four grey patterns under noise, a small network, participants in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from asterism.algorithms import TASKS
from asterism.algorithms.known import Known, known_stage, upright
from asterism.algorithms.local import Setup
from asterism.data.images import ImageSet
from asterism.data.settings import Augment
from asterism.evaluation import measure
from asterism.federated import Federation
from asterism.flow import Answer, Ask, Flow, State, Tensors, run
from asterism.model import Architecture
from asterism.runs.inprocess import InProcess
from asterism.seeds import generator
from asterism.site import Share, Site
from asterism.training import Train
from asterism.worker import Worker

CLASSES = ("lake", "hill", "wood", "road")
SHAPE = (1, 8, 8)


def pictures(per_class: int = 12, *, seed: int = 1) -> ImageSet:
    """Images of four fixed 8×8 patterns, each under its own noise; another seed draws other noise."""
    patterns = torch.randint(40, 216, (len(CLASSES), *SHAPE), generator=generator(0, "patterns"))
    labels = torch.arange(len(CLASSES)).repeat_interleave(per_class)
    noise = 25 * torch.randn(len(labels), *SHAPE, generator=generator(seed, "noise"))
    pixels = (patterns[labels] + noise).clamp(0, 255).to(torch.uint8)
    return ImageSet(pixels, labels, [f"{seed}/{i}" for i in range(len(labels))], CLASSES)


def everything(images: ImageSet) -> Share:
    """All images of a set as one share."""
    return Share(images, images.labels, torch.arange(len(images)))


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Whether two groups of tensors agree in names, types, shapes and every bit."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and torch.equal(a[name].contiguous().view(torch.uint8), b[name].contiguous().view(torch.uint8))
        for name in a
    )


def copied(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors as they are now."""
    return {name: value.clone() for name, value in tensors.items()}


class Flat(nn.Module):
    """A backbone without parameters: the pixels are the representation."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class FrozenStem(nn.Module):
    """A backbone whose first convolution is not trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 6, 3, padding=1)
        self.stem.requires_grad_(False)
        self.norm = nn.BatchNorm2d(6)
        self.top = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.top(self.norm(self.stem(x)).relu().mean(dim=(2, 3)))
        return z


def thirds() -> dict[str, Tensor]:
    """Three participants with every third of the 48 default pictures each."""
    return {f"site-{k}": torch.arange(k, 48, 3) for k in range(3)}


@dataclass
class Tiny:
    """A federation with everything that known class learning needs; ``stores`` are the participants' own."""

    federation: Federation = field(default_factory=lambda: Federation(clients=2))
    known: Known = field(default_factory=lambda: Known(rounds=2))
    train: Train = field(default_factory=lambda: Train(batch=8, local_epochs=1, lr=0.05))
    augment: Augment = field(default_factory=lambda: Augment(crop=1, flip=False))
    images: ImageSet = field(default_factory=pictures)
    shares: Mapping[str, Tensor] = field(default_factory=thirds)
    backbone: str = "small"
    seed: int = 7
    stores: dict[str, dict[str, Tensors]] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = self.known.rows(len(self.images.classes))
        self.worker = Worker.of(Architecture(name=self.backbone), self.images.shape, rows, self.seed)
        self.start = State("known", 0, self.worker.take(), self.worker.layout.id, self.images.classes)

    def site(self, name: str) -> Site:
        share = Share(self.images, self.images.labels, self.shares[name])
        return Site(name, lambda stage: share, self.stores.setdefault(name, {}), self.worker)

    def flow(self, state: State) -> Flow:
        return known_stage(state, tuple(self.shares), self.known, self.setup)

    @property
    def setup(self) -> Setup:
        return Setup(self.federation, self.train, self.augment, self.seed, self.worker.layout)

    def answer(self, ask: Ask) -> Answer:
        answer = InProcess(self.site, tuple(self.shares), TASKS).answer(ask)
        self.asks.append(ask)
        self.answers.append(answer)
        return answer

    def run(self, state: State | None = None, keep: Callable[[State], None] = lambda state: None) -> State:
        """The state at the end of known class learning, from the start or from a kept state."""
        return run(self.flow(state or self.start), self.answer, keep)

    def accuracy(self, state: State) -> float:
        """Share of unseen pictures that the upright rows name rightly."""
        test, classes = pictures(10, seed=2), len(self.images.classes)
        table = measure(upright(state, self.worker.layout), self.worker, everything(test), classes, classes)["known"]
        return float(table.trace() / table.sum())

    def copied_stores(self) -> dict[str, dict[str, Tensors]]:
        return copy.deepcopy(self.stores)


def resumed(tiny: Tiny, stores: dict[str, dict[str, Tensors]]) -> Tiny:
    """The same federation in a new process, its participants' stores as they were kept."""
    return replace(tiny, stores=copy.deepcopy(stores), asks=[], answers=[])
