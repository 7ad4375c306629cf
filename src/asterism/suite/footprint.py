"""How large a network is in memory: its parameters, and the activations that one image leaves behind."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from asterism.model import Architecture, network

Shape = tuple[int, int, int]


@cache
def parameters(architecture: Architecture, shape: Shape, rows: int) -> int:
    """Trained numbers of a network with so many head rows."""
    return sum(parameter.numel() for parameter in network(architecture, shape, rows, 0).parameters())


@cache
def activations(architecture: Architecture, shape: Shape) -> int:
    """Numbers that the layers of a network put out for one image."""
    net = network(architecture, shape, 2, 0).eval()
    counted = 0

    def count(module: torch.nn.Module, given: Any, out: Tensor) -> None:
        nonlocal counted
        counted += out.numel()

    hooks = [module.register_forward_hook(count) for module in net.modules() if not list(module.children())]
    with torch.no_grad():
        net.represent(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return counted
