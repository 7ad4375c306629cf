"""A classifier whose head rows are the prototypes, and the one flat vector that all of its parameters are views of.

Parameters lie in one float32 vector with the head at its end, float buffers in a second, integer counters in a
third. A change of participant is then one copy, averaging and every drift term is vector arithmetic, a grown head
is a longer vector, and the frozen known classes are one slice of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from asterism import backbones
from asterism.config import Section
from asterism.errors import AsterismError
from asterism.seeds import number

HEAD = "head.weight"


class Architecture(Section):
    """The network: f_θ by name or import path, and how images are brought to zero mean and unit deviation."""

    name: str = "resnet18"
    mean: tuple[float, ...] = (0.5,)  # per channel, or one for all, of values in [0, 1]
    std: tuple[Annotated[float, Field(gt=0)], ...] = (0.25,)


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

    def represent(self, images: Tensor) -> Tensor:
        """Representations z = f_θ(x), (n, d), of images (n, c, h, w) in [0, 1]."""
        z: Tensor = self.extractor((images - self.mean) / self.std)
        return z

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows) of images (n, c, h, w) in [0, 1]."""
        logits: Tensor = self.head(self.represent(images))
        return logits

    @property
    def prototypes(self) -> Tensor:
        """The rows of the head, (rows, d): p_c for known classes, ẑ_c for novel ones."""
        return self.head.weight


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


class Worker:
    """One network on one device, its state laid out flat; participants take turns with it."""

    def __init__(self, build: Callable[[int], Network], rows: int, device: torch.device | str = "cpu") -> None:
        self._build = build
        self.device = torch.device(device)
        self._twins: dict[str, Worker] = {}
        self._lay_out(build(rows))

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        shape: tuple[int, int, int],
        rows: int,
        seed: int,
        device: str = "cpu",
    ) -> Worker:
        """A worker with the freshly initialised network of a run."""
        return cls(lambda n: network(architecture, shape, n, seed), rows, device)

    def _lay_out(self, net: Network) -> None:
        self.network = net.to(self.device)
        named = dict(net.named_parameters())
        named[HEAD] = named.pop(HEAD)  # last, so that a new row is an appended one
        if any(p.dtype != torch.float32 for p in named.values()):
            raise AsterismError("every parameter of the backbone must be float32", where="model.name")
        kept = set(net.state_dict())
        buffers = {name: b for name, b in net.named_buffers() if name in kept}
        floating = {name: b for name, b in buffers.items() if b.is_floating_point()}
        counters = {name: b for name, b in buffers.items() if not b.is_floating_point()}
        if any(b.numel() != 1 for b in counters.values()):
            raise AsterismError("integer buffers of the backbone must be single counters", where="model.name")
        self.layout = Layout(_shapes(named), _shapes(floating), tuple(counters))
        self.parameters = _flat(named.values(), self.device, torch.float32)
        self.gradient = torch.zeros_like(self.parameters)
        self.buffers = _flat(floating.values(), self.device, torch.float32)
        self.counters = _flat(counters.values(), self.device, torch.int64)
        views = _views(self.parameters, self.layout.parameters)
        gradients = _views(self.gradient, self.layout.parameters)
        self._untrained, start = list[tuple[int, int]](), 0
        for name, parameter in named.items():
            parameter.data, end = views[name], start + parameter.numel()
            if parameter.requires_grad:
                parameter.grad = gradients[name]
            else:
                self._untrained.append((start, end))
            start = end
        for name, view in _views(self.buffers, self.layout.buffers).items():
            _owner(net, name)._buffers[name.rpartition(".")[2]] = view
        for i, name in enumerate(self.layout.counters):
            _owner(net, name)._buffers[name.rpartition(".")[2]] = self.counters[i]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over a model's vectors; a longer or shorter head is rebuilt, anything else that differs is refused."""
        parameters = tensors["parameters"]
        for name, own in (("buffers", self.buffers), ("counters", self.counters)):
            if tensors[name].shape != own.shape:
                raise ValueError(f"{tensors[name].numel()} {name} are not the {own.numel()} of this network")
        if parameters.numel() != self.layout.size:
            head = parameters.numel() - self.layout.extractor_size
            if head <= 0 or head % self.layout.features:
                raise ValueError(f"{parameters.numel()} parameters fit no head of this network ({self.layout.size})")
            self._lay_out(self._build(head // self.layout.features))
        self.parameters.copy_(parameters)
        self.buffers.copy_(tensors["buffers"])
        self.counters.copy_(tensors["counters"])

    def take(self) -> dict[str, Tensor]:
        """A copy of the model's vectors."""
        return {
            "parameters": self.parameters.clone(),
            "buffers": self.buffers.clone(),
            "counters": self.counters.clone(),
        }

    def fixed(self, frozen_rows: int) -> list[tuple[int, int]]:
        """The ranges of the parameter vector that training must not move: the first head rows, frozen backbones."""
        start = self.layout.extractor_size
        rows = [(start, start + frozen_rows * self.layout.features)] if frozen_rows else []
        return self._untrained + rows

    def twin(self, purpose: str) -> Worker:
        """A second network of the same kind, kept for the next time it is asked for (MOON's reference models)."""
        if purpose not in self._twins:
            self._twins[purpose] = Worker(self._build, self.layout.rows, self.device)
        return self._twins[purpose]


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


def _shapes(named: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in named.items()}


def _flat(values: Iterable[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    pieces = [value.detach().reshape(-1).to(device, dtype) for value in values]
    return torch.cat(pieces) if pieces else torch.zeros(0, device=device, dtype=dtype)


def _views(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [_length(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])
