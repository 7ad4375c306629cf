"""What a GPU computes in fused kernels: batch normalisation with a shortcut and ReLU, and steps of SGD.

Feature maps between convolutions are most of what a training step of a small-image ResNet moves through memory. torch
takes a pass over them for each operation; the kernels take one for statistics and one for the rest, forward and
backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

PRESENT = find_spec("triton") is not None  # comes with torch where it computes on NVIDIA GPUs
CHANNELS = 64  # of which the kernels want a multiple
ALLOWED = ContextVar("allowed", default=False)  # who computes with a network says so (asterism.model.Speed)

Ranges = Sequence[tuple[int, int]]


@contextmanager
def allowed(wanted: bool) -> Iterator[None]:
    """Within it, the kernels are used or not."""
    before = ALLOWED.set(wanted)
    try:
        yield
    finally:
        ALLOWED.reset(before)


@cache
def trial(device: torch.device) -> str:
    """Why Triton makes no kernels for a GPU, in one line; empty where it does."""
    try:
        with torch.cuda.device(device):
            vector, lr = torch.zeros(16, device=device), torch.zeros((), device=device)
            descend(vector, vector.clone(), vector.clone(), lr, 0.0, 0.0, ())
            torch.cuda.synchronize()
    except Exception as error:  # a compiler that is missing, a GPU that is too old, a driver that does not fit
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return ""


def normalised(bn: nn.BatchNorm2d, x: Tensor, beside: Tensor | None = None, *, rectified: bool = True) -> Tensor:
    """``bn(x)``, plus a shortcut where one is given, rectified where wanted."""
    return forked(bn, x, beside, rectified=rectified)[0]


def forked(
    bn: nn.BatchNorm2d, x: Tensor, beside: Tensor | None = None, *, rectified: bool = True
) -> tuple[Tensor, Tensor]:
    """The same, twice, for two that read it: what comes back from them is added within the next kernel."""
    if fits(bn, x):
        found: tuple[Tensor, Tensor] = _Normalised.apply(x, bn.weight, bn.bias, beside, bn, rectified)  # type: ignore[no-untyped-call]
        return found
    out = bn(x)
    if beside is not None:
        out = out + beside
    if rectified:
        out = relu(out)
    return out, out


def fits(bn: nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether the kernels do what is asked: training, on a GPU, on half precise maps with their channels last."""
    return (
        PRESENT
        and ALLOWED.get()
        and x.is_cuda
        and bn.training
        and x.dtype == torch.bfloat16
        and x.shape[1] % CHANNELS == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
    )


class _Normalised(torch.autograd.Function):
    """``forked`` by the kernels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, bn: nn.BatchNorm2d, rectified: bool
    ) -> tuple[Tensor, Tensor]:
        from asterism import kernels as k

        m, added = _Maps.of(x), beside is not None
        sums, squares = x.new_empty(2, m.pieces, m.channels, dtype=torch.float32)
        mean, inverse, scale, offset = x.new_empty(4, m.channels, dtype=torch.float32)
        k.add_up[m.pieces, m.blocks](x, bn.running_mean, sums, squares, m.rows, m.share, **m.tile)
        k.settle[m.settling](
            sums, squares, m.pieces, m.rows, weight, bias, bn.running_mean, bn.running_var, bn.num_batches_tracked,
            bn.momentum, bn.eps, mean, inverse, scale, offset, **m.settled,
        )  # fmt: skip
        out, shortcut = torch.empty_like(x), x if beside is None else _rows(beside)
        k.normalise[m.tiles, m.blocks](
            x, scale, offset, shortcut, out, m.rows, ADDED=added, RECTIFIED=rectified, **m.tile
        )
        ctx.added, ctx.passing = added, k.FREE if not rectified else k.BY_OUTPUT if added else k.BY_INPUT
        ctx.save_for_backward(x, weight, mean, inverse, scale, offset, out if ctx.passing == k.BY_OUTPUT else x)
        ctx.set_materialize_grads(False)
        return out, out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, ...]:
        from asterism import kernels as k

        gradients = [_rows(gradient) for gradient in (first, second) if gradient is not None]
        if not gradients:
            return (None,) * 6
        x, weight, mean, inverse, scale, offset, out = ctx.saved_tensors
        m, two = _Maps.of(x), len(gradients) == 2
        kept = two or ctx.passing == k.BY_OUTPUT  # what passed is written down, not found again
        passed = torch.empty_like(x) if kept else gradients[0]
        sums, dots = x.new_empty(2, m.pieces, m.channels, dtype=torch.float32)
        k.add_up_backward[m.pieces, m.blocks](
            gradients[0], gradients[-1], x, out, mean, inverse, scale, offset, passed, sums, dots, m.rows, m.share,
            PASSING=ctx.passing, TWO=two, KEPT=kept, **m.tile,
        )  # fmt: skip
        to_weight, to_bias, of_gradient, of_x, constant = x.new_empty(5, m.channels, dtype=torch.float32)
        k.settle_backward[m.settling](
            sums, dots, m.pieces, m.rows, weight, inverse, to_weight, to_bias, of_gradient, of_x, constant, **m.settled
        )
        found = torch.empty_like(x)
        k.normalise_backward[m.tiles, m.blocks](
            passed, x, mean, scale, offset, of_gradient, of_x, constant, found, m.rows,
            PASSING=k.FREE if kept else ctx.passing, **m.tile,
        )  # fmt: skip
        return found, to_weight, to_bias, passed if ctx.added else None, None, None


@dataclass(frozen=True)
class _Maps:
    """How programs share feature maps that lie as rows."""

    rows: int
    channels: int
    share: int  # rows that one program adds up
    pieces: int  # programs that do so, for each block of channels
    blocks: int  # of channels, one program wide
    tiles: int  # programs down a map, where each takes one tile
    tile: Mapping[str, int]  # of a program that goes over a map
    settling: tuple[int]  # programs that settle channels
    settled: Mapping[str, int]  # of one of those

    @classmethod
    def of(cls, x: Tensor) -> _Maps:
        from asterism import kernels as k

        channels = x.shape[1]
        rows, blocks = x.numel() // channels, channels // k.COLUMNS
        tiles = -(-rows // k.ROWS)
        share = -(-tiles // max(1, k.PIECES // blocks)) * k.ROWS
        return cls(
            rows, channels, share, -(-rows // share), blocks, tiles,
            {"CHANNELS": channels, "ROWS": k.ROWS, "COLUMNS": k.COLUMNS, "num_warps": k.WARPS},
            (channels // k.SETTLED,),
            {"CHANNELS": channels, "COLUMNS": k.SETTLED, "TOGETHER": k.TOGETHER},
        )  # fmt: skip


def _rows(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def thinned(x: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th pixel of every ``stride``-th row."""
    if stride == 1:
        return x
    found: Tensor = _Thinned.apply(x, stride)  # type: ignore[no-untyped-call]
    return found


class _Thinned(torch.autograd.Function):
    """Slicing, whose gradient torch would spread over zeros once for rows and once more for columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        x = _rows(x)
        found = torch.empty_like(x[:, :, ::stride, ::stride], memory_format=torch.channels_last)
        _pixels(found).copy_(_pixels(x)[:, ::stride, ::stride])
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = _rows(gradient)
        spread = torch.empty(
            ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
        ).zero_()
        _pixels(spread)[:, :: ctx.stride, :: ctx.stride] = _pixels(gradient)
        return spread, None


def _pixels(maps: Tensor) -> Tensor:
    """Maps with their channels last as (n, height, width, …), in words of 16 bytes where they can be: faster copies."""
    rows = maps.permute(0, 2, 3, 1)
    fits = maps.shape[1] * maps.element_size() % 16 == 0 and rows.is_contiguous()
    return rows.view(torch.complex128) if fits else rows


def descend(
    parameters: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    fixed: Ranges,
) -> None:
    """One step of SGD in place, as ``training.descend`` makes it, for vectors on a GPU."""
    from asterism import kernels as k

    for first, end in _between(fixed, parameters.numel()):
        programs = -(-(end - first) // k.SPAN)
        k.descend[(programs,)](parameters, gradient, velocity, lr, momentum, weight_decay, first, end, k.SPAN)


def _between(fixed: Ranges, size: int) -> Iterator[tuple[int, int]]:
    """The ranges that ``fixed`` leaves."""
    first = 0
    for start, end in [*sorted(fixed), (size, size)]:
        if first < start:
            yield first, start
        first = max(first, end)
