"""A classifier whose head rows are the prototypes, and how its parameters lie in one flat vector.

Parameters lie in one float32 vector with the head at its end, float buffers in a second, integer counters in a
third (see ``asterism.worker``). A change of participant is then one copy, averaging and every drift term is vector
arithmetic, a grown head is a longer vector, and the frozen known classes are one slice of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from asterism import backbones, fused
from asterism.config import Section
from asterism.errors import AsterismError
from asterism.seeds import number

HEAD = "head.weight"
READING = 1024  # images at a time where representations are only read: evaluation, screening, prototypes


class Architecture(Section):
    """The network: f_θ by name or import path, and how images are brought to zero mean and unit deviation."""

    name: str = "resnet18"
    mean: tuple[float, ...] = (0.5,)  # per channel, or one for all, of values in [0, 1]
    std: tuple[Annotated[float, Field(gt=0)], ...] = (0.25,)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled for fixed shapes, once for all networks of a process."""
    return torch.compile(function, dynamic=False)


@dataclass(frozen=True)
class Speed:
    """How a network computes. The default is the plain path: float32, one operation after the other."""

    half: bool = False  # bfloat16 inside the extractor; everything outside stays float32
    fused: bool = False  # kernels of our own, for SGD and wherever they fit
    compiled: int = 0  # batch size for which the extractor, losses and SGD are compiled; 0: never
    graphs: bool = False  # replay the local step as a CUDA graph
    search: bool = False  # let cuDNN try its algorithms for convolutions of the usual batch, and keep the fastest
    reading: bool = False  # in half precision outside of training too
    read: int = 0  # batch size for which that is compiled; 0: never

    @property
    def at_rest(self) -> Speed:
        """How representations are computed that are only read."""
        return Speed(half=self.half, compiled=self.read) if self.reading else PLAIN

    def of(self, function: Callable[..., Any], images: int) -> Callable[..., Any]:
        """``function`` of a batch of so many images, compiled for batches of the usual size, one view or two."""
        return compiled(function) if self.compiled and images in (self.compiled, 2 * self.compiled) else function


PLAIN = Speed()


class Network(nn.Module):
    """m = g_ω ∘ f_θ for images in [0, 1]: representations z, and a bias-free linear head on them."""

    mean: Tensor
    std: Tensor

    def __init__(self, extractor: nn.Module, features: int, rows: int, architecture: Architecture) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = nn.Linear(features, rows, bias=False)
        # Constants of the architecture, not state: they neither travel nor are averaged.
        self.register_buffer("mean", torch.tensor(architecture.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(architecture.std).view(-1, 1, 1), persistent=False)
        self.speed = PLAIN

    def represent(self, images: Tensor) -> Tensor:
        """Representations z = f_θ(x), (n, d), of images (n, c, h, w) in [0, 1]."""
        function = self.speed.of(_represent, len(images))
        with fused.allowed(self.speed.fused):
            z: Tensor = function(self.extractor, images, self.mean, self.std, self.speed.half)
        return z

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows) of images (n, c, h, w) in [0, 1]."""
        logits: Tensor = self.head(self.represent(images))
        return logits

    @property
    def prototypes(self) -> Tensor:
        """The rows of the head, (rows, d): p_c for known classes, ẑ_c for novel ones."""
        return self.head.weight


def _represent(extractor: nn.Module, images: Tensor, mean: Tensor, std: Tensor, half: bool) -> Tensor:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        z: Tensor = extractor((images - mean) / std)
    return z.float()


def network(architecture: Architecture, shape: tuple[int, int, int], rows: int, seed: int) -> Network:
    """A freshly initialised network for images of ``shape``; the process-wide generator is left as it was."""
    for name, values in (("mean", architecture.mean), ("std", architecture.std)):
        if len(values) not in (1, shape[0]):
            raise AsterismError(
                f"{len(values)} values for images of {shape[0]} channels",
                where=f"model.{name}",
                fix="one each, or one for all",
            )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number(seed, "weights"))  # not torch.manual_seed: it reseeds GPUs too
        extractor = backbones.backbone(architecture.name, shape[0])
        return Network(extractor, backbones.width(extractor, shape), rows, architecture)


@dataclass(frozen=True)
class Layout:
    """Names and shapes behind the flat vectors, in order; they travel once, as ``id``."""

    parameters: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    counters: tuple[str, ...]

    @property
    def id(self) -> str:
        """A short hash that two sites share exactly if their vectors mean the same."""
        text = repr((list(self.parameters.items()), list(self.buffers.items()), self.counters))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def rows(self) -> int:
        """Rows of the head."""
        return self.parameters[HEAD][0]

    @property
    def features(self) -> int:
        """Width of the representation."""
        return self.parameters[HEAD][1]

    @property
    def size(self) -> int:
        """Length of the parameter vector."""
        return sum(_length(shape) for shape in self.parameters.values())

    @property
    def extractor_size(self) -> int:
        """Length of the part of the parameter vector that is f_θ; the head is what follows."""
        return self.size - self.rows * self.features

    def with_rows(self, rows: int) -> Layout:
        """The same network with another number of head rows."""
        return Layout({**self.parameters, HEAD: (rows, self.features)}, self.buffers, self.counters)

    def head(self, parameters: Tensor) -> Tensor:
        """The head's rows inside a parameter vector, as a view."""
        return parameters[self.extractor_size :].view(self.rows, self.features)


def grow(vector: Tensor, rows: Tensor) -> Tensor:
    """A parameter vector with head ``rows`` (n, d) appended; what was there keeps its place, bit for bit."""
    return torch.cat([vector, rows.to(vector).reshape(-1)])


def fitted(vector: Tensor, size: int) -> Tensor:
    """A vector over parameters for a head that has grown or shrunk since: zeros for new rows, lost rows cut off."""
    if vector.numel() >= size:
        return vector[:size]
    return torch.cat([vector, vector.new_zeros(size - vector.numel())])


def _length(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
