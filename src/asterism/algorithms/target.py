"""Orchestra's projector, and the target network that slowly follows the one in training.

The target's extractor is the worker's twin and its projector a companion. As one vector, extractor first, both are
the state's tensor ``target``. The target computes with the statistics of its batch and so needs no running ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from asterism.companion import Companion
from asterism.data.augment import plain
from asterism.flow import Tensors
from asterism.model import PLAIN, fitted
from asterism.site import Share
from asterism.worker import Worker

TURNS = 4


class Projector(nn.Module):
    """Two layers from representations to projections, and one from there that tells quarter turns."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(features, width, bias=False), Standardised(width)
        self.second, self.last = nn.Linear(width, width), Standardised(width, affine=False)
        self.turn = nn.Linear(width, TURNS)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Projections (n, width) of representations (n, features), and logits (n, 4) of how they were turned."""
        projected = self.last(self.second(relu(self.middle(self.first(z)))))
        return projected, self.turn(projected)


class Standardised(nn.BatchNorm1d):
    """Batch normalisation by the batch's own statistics; a single row, which has none, stays as it is."""

    def __init__(self, width: int, affine: bool = True) -> None:
        super().__init__(width, affine=affine, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """The rows, each column with mean 0 and deviation 1."""
        return super().forward(x) if len(x) > 1 else x


def projector_of(worker: Worker, width: int, purpose: str) -> Companion:
    """The worker's projector for a purpose."""
    features = worker.layout.features
    return worker.companion(f"{purpose} projector {width}", lambda: Projector(features, width))


@dataclass(frozen=True)
class Target:
    """The target network on a worker, as it was sent; the head of the twin has no use."""

    twin: Worker
    projector: Companion

    @classmethod
    def of(cls, worker: Worker, width: int) -> Target:
        """The worker's target network as it is."""
        return cls(worker.twin("target"), projector_of(worker, width, "target"))

    @property
    def extractor(self) -> Tensor:
        """The extractor's part of the parameters."""
        return self.twin.parameters[: self.twin.layout.extractor_size]

    def load(self, tensors: Tensors, images: int) -> None:
        """Takes over what was sent; with one image there are no statistics but the model's running ones."""
        size = self.twin.layout.extractor_size
        self.twin.load({**tensors, "parameters": fitted(tensors["target"][:size], self.twin.layout.size)})
        self.twin.network.train(images > 1)
        self.projector.load(tensors["target"][size:])

    def take(self) -> Tensor:
        """A copy of both as one vector."""
        return torch.cat([self.extractor, self.projector.parameters])

    @torch.no_grad()
    def follow(self, worker: Worker, online: Companion, kept: float) -> None:
        """θ ← kept·θ + (1 − kept)·θ of what is in training, parameters only."""
        self.extractor.lerp_(worker.parameters[: len(self.extractor)], 1 - kept)
        self.projector.parameters.lerp_(online.parameters, 1 - kept)

    @torch.no_grad()
    def project(self, images: Tensor) -> Tensor:
        """Projections (n, width) of images in [0, 1]."""
        projected: Tensor = self.projector.module(self.twin.network.represent(images))[0]
        return projected

    def directions(self, share: Share) -> Tensor:
        """Unit projections (n, width) of a share's images as they are, on the CPU; computed the plain way."""
        network = self.twin.network
        speed, network.speed = network.speed, PLAIN
        projected = self.project(plain(share.images.pixels[share.indices]))
        network.speed = speed
        return normalize(projected, dim=1).cpu()
