"""A small module that a method trains beside the network, such as a projector or a second head.

Like the network's, its parameters are views into one flat vector, which travels and is averaged as a tensor of the
state, ``companion``. It is no part of the model: a stage drops it when it ends, and the pull of an FL algorithm
(FedProx, SCAFFOLD) does not reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from asterism.seeds import number

Build = Callable[[], nn.Module]


class Companion:
    """A module on one device, its parameters laid out flat, and their gradient likewise."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        if next(module.buffers(), None) is not None:
            raise ValueError("a companion must have no buffers: nothing would average them")
        self.module = module.to(device)
        self.named = tuple(self.module.parameters())
        self.parameters = flat(self.named)
        self.gradient = torch.zeros_like(self.parameters)
        sizes = [parameter.numel() for parameter in self.named]
        self._pieces = torch.split(self.gradient, sizes)
        for parameter, view in zip(self.named, torch.split(self.parameters, sizes), strict=True):
            parameter.data = view.view(parameter.shape)

    def load(self, vector: Tensor) -> None:
        """Takes over a vector."""
        if vector.shape != self.parameters.shape:
            raise ValueError(f"{vector.numel()} parameters are not the {self.parameters.numel()} of this companion")
        self.parameters.copy_(vector)

    def take(self) -> Tensor:
        """A copy of the vector."""
        return self.parameters.clone()

    def receive(self, gradients: Sequence[Tensor]) -> None:
        """``gradient`` holds the gradients of the parameters, in their order."""
        torch._foreach_copy_(self._pieces, [gradient.reshape(-1) for gradient in gradients])


def flat(parameters: Sequence[Tensor]) -> Tensor:
    """One vector of copies of the parameters."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def fresh(build: Build, seed: int, stage: str) -> Tensor:
    """The vector that a companion begins a stage with; the process-wide generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number(seed, "companion", stage))
        return flat(tuple(build().parameters()))
