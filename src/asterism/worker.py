"""One network on one device, laid out flat, with which participants take turns.

Whatever a local step reads or writes keeps its address from one participant to the next: the model's vectors, the
tensors that are ``held`` for it and the generators it draws from. So a step that was captured once as a CUDA graph
serves every participant and round (see ``asterism.training``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from asterism.backbones import First
from asterism.companion import Build, Companion
from asterism.errors import AsterismError
from asterism.model import HEAD, PLAIN, Architecture, Layout, Network, Speed, network
from asterism.seeds import number


class Worker:
    """One network on one device, its state laid out flat; participants take turns with it."""

    def __init__(
        self,
        build: Callable[[int], Network],
        rows: int,
        device: torch.device | str = "cpu",
        speed: Speed = PLAIN,
        lane: int = 0,
    ) -> None:
        self._build, self.speed, self._lane = build, speed, lane
        self.device = torch.device(device)
        self._twins: dict[str, Worker] = {}
        self._companions: dict[str, Companion] = {}
        self._held: dict[str, Tensor] = {}
        self.generators: dict[str, torch.Generator] = {}
        self.programs: dict[object, Any] = {}  # local steps to be used again, until the layout changes
        self._lay_out(build(rows))
        self.network.speed = speed.at_rest

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        shape: tuple[int, int, int],
        rows: int,
        seed: int,
        device: str = "cpu",
        speed: Speed = PLAIN,
        lane: int = 0,
    ) -> Worker:
        """A worker with the freshly initialised network of a run; those that work at once differ in ``lane``."""
        return cls(lambda n: network(architecture, shape, n, seed), rows, device, speed, lane)

    def _lay_out(self, net: Network) -> None:
        self.programs.clear()
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
        self._pieces = torch.split(self.gradient, [p.numel() for p in named.values()])
        self.buffers = _flat(floating.values(), self.device, torch.float32)
        self.counters = _flat(counters.values(), self.device, torch.int64)
        for name, view in _views(self.parameters, self.layout.parameters).items():
            named[name].data = view
        self._named = tuple(named.values())
        self._convolved = _convolved(net) if self.speed.half else []
        self._full = [weight.data for weight in self._convolved]
        self._half = [weight.to(torch.bfloat16) for weight in self._full]
        for name, view in _views(self.buffers, self.layout.buffers).items():
            _owner(net, name)._buffers[name.rpartition(".")[2]] = view
        for i, name in enumerate(self.layout.counters):
            _owner(net, name)._buffers[name.rpartition(".")[2]] = self.counters[i]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over a model's vectors; a longer or shorter head is remade, anything else that differs is refused."""
        parameters = tensors["parameters"]
        for name, own in (("buffers", self.buffers), ("counters", self.counters)):
            if tensors[name].shape != own.shape:
                raise ValueError(f"{tensors[name].numel()} {name} are not the {own.numel()} of this network")
        if parameters.numel() != self.layout.size:
            head, features = parameters.numel() - self.layout.extractor_size, self.layout.features
            if head <= 0 or head % features:
                raise ValueError(f"{parameters.numel()} parameters fit no head of this network ({self.layout.size})")
            linear = self.network.head
            linear.out_features = head // features
            linear.weight = nn.Parameter(torch.empty(head // features, features, device=self.device))
            self._lay_out(self.network)
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

    def differentiate(self, loss: Tensor, companion: Companion | None = None) -> None:
        """``gradient`` holds the gradient of ``loss``; zeros where it does not reach or nothing is to be trained."""
        trained = [p for p in self._named if p.requires_grad]
        beside = () if companion is None else companion.named
        gradients = torch.autograd.grad(loss, [*trained, *beside], materialize_grads=True)
        found = iter(gradients)
        pieces = [_line(next(found) if p.requires_grad else torch.zeros_like(p)) for p in self._named]
        for kind in {piece.dtype for piece in pieces}:  # one kernel copies many pieces, if they are of one kind
            alike = [(own, piece) for own, piece in zip(self._pieces, pieces, strict=True) if piece.dtype == kind]
            torch._foreach_copy_([own for own, _ in alike], [piece for _, piece in alike])
        if companion is not None:
            companion.receive(gradients[len(trained) :])

    def fixed(self, frozen_rows: int) -> list[tuple[int, int]]:
        """The ranges of the parameter vector that training must not move: the first head rows, frozen backbones."""
        ranges, start = list[tuple[int, int]](), 0
        for parameter in self._named:
            end = start + parameter.numel()
            if not parameter.requires_grad:
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
                ranges.append((begin, end))
            start = end
        start = self.layout.extractor_size
        return [*ranges, (start, start + frozen_rows * self.layout.features)] if frozen_rows else ranges

    def hold(self, name: str, value: Tensor) -> Tensor:
        """A tensor of the worker's own that holds ``value``; the next of this name and shape is put into the same."""
        held = self._held.get(name)
        if held is None or held.shape != value.shape or held.dtype != value.dtype:
            self.programs.clear()  # they would go on with the old one
            held = self._held[name] = torch.empty_like(value, device=self.device)
        return held.copy_(value.detach())

    def generator(self, seed: int, purpose: str, *more: object) -> torch.Generator:
        """The worker's generator for a purpose, seeded as ``seeds.generator`` would seed it."""
        if purpose not in self.generators:
            self.generators[purpose] = torch.Generator(self.device)
        return self.generators[purpose].manual_seed(number(seed, purpose, *more))

    def twin(self, purpose: str) -> Worker:
        """A second network of the same kind, kept for the next time it is asked for (MOON's reference models)."""
        if purpose not in self._twins:
            self._twins[purpose] = Worker(self._build, self.layout.rows, self.device)
            self._twins[purpose].network.speed = self.speed
        return self._twins[purpose]

    def companion(self, name: str, build: Build) -> Companion:
        """The module of this name that trains beside the network, kept for the next time it is asked for."""
        if name not in self._companions:
            self._companions[name] = Companion(build(), self.device)
        return self._companions[name]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A participant's turn: on a GPU the worker computes on a stream of its own, and is done when the turn ends."""
        if self.device.type != "cuda":
            yield
            return
        own = stream(self.device, self._lane)
        own.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(own):
            yield
        own.synchronize()

    @contextmanager
    def still(self) -> Iterator[None]:
        """The extractor is not trained: its parameters keep their bits, and no gradient is computed for them."""
        trained = [p for p in self.network.extractor.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)

    @contextmanager
    def training(self, batch_statistics: bool) -> Iterator[None]:
        """The network computes as fast as the worker may in training, with or without statistics of the batch."""
        self.network.train(batch_statistics)
        self.network.speed = self.speed
        for weight, half in zip(self._convolved, self._half, strict=True):
            weight.data = half
        try:
            yield
        finally:
            for weight, full in zip(self._convolved, self._full, strict=True):
                weight.data = full
            self.network.speed = self.speed.at_rest

    def halve(self) -> None:
        """In training, convolutions go on with the weights as they now are: all rounded at once, not one by one."""
        if self._half:
            torch._foreach_copy_(self._half, self._full)


@cache
def stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """The stream of a lane, the same for all runs of a process.

    torch hands out 32 streams a device, and after that the same ones again: with new ones for every run, one worker
    would in the end compute on the stream that another is capturing a graph of.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _convolved(net: Network) -> list[Tensor]:
    """Weights that are only convolved with, which autocast would round too; a subclass may do more with its own."""
    modules = [module for module in net.extractor.modules() if isinstance(module, nn.Conv2d)]
    return [module.weight for module in modules if type(module) in (nn.Conv2d, First)]


def _shapes(named: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in named.items()}


def _line(value: Tensor) -> Tensor:
    """A tensor as it lies in a flat vector: convolutions with their input channels last, as fast kernels want them."""
    return (value.permute(0, 2, 3, 1) if value.ndim == 4 else value).reshape(-1)


def _flat(values: Iterable[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    pieces = [_line(value.detach()).to(device, dtype) for value in values]
    return torch.cat(pieces) if pieces else torch.zeros(0, device=device, dtype=dtype)


def _views(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [torch.Size(shape).numel() for shape in shapes.values()])
    return {name: _shaped(piece, shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _shaped(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 4:
        return piece.view(shape)
    outputs, inputs, height, width = shape
    return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])
