"""What a GPU computes in fused kernels: batch normalisation with a shortcut and ReLU, and steps of SGD.

Feature maps between convolutions are most of what a training step of a small-image ResNet moves through memory. torch
takes a pass over them for each operation; the kernels take one for statistics and one for the rest, forward and
backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

PRESENT = find_spec("triton") is not None  # comes with torch where it computes on NVIDIA GPUs
CHANNELS = 64  # of which the kernels want a multiple

Ranges = Sequence[tuple[int, int]]


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

        rows, channels, share, pieces = _laid_out(x)
        sums, squares = x.new_empty(2, pieces, channels, dtype=torch.float32)
        mean, inverse, scale, offset = x.new_empty(4, channels, dtype=torch.float32)
        out, added = torch.empty_like(x), x if beside is None else _rows(beside)
        blocks = channels // k.COLUMNS
        k.add_up[pieces, blocks](x, bn.running_mean, sums, squares, rows, share, channels, k.ROWS, k.COLUMNS)
        k.settle[(channels // k.SETTLED,)](
            sums, squares, pieces, rows, weight, bias, bn.running_mean, bn.running_var, bn.num_batches_tracked,
            bn.momentum, bn.eps, mean, inverse, scale, offset, channels, k.SETTLED, k.TOGETHER,
        )  # fmt: skip
        k.normalise[-(-rows // k.ROWS), blocks](
            x, scale, offset, added, out, rows, beside is not None, rectified, channels, k.ROWS, k.COLUMNS
        )
        ctx.passing = k.FREE if not rectified else k.BY_INPUT if beside is None else k.BY_OUTPUT
        ctx.added = beside is not None
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
        rows, channels, share, pieces = _laid_out(x)
        two = len(gradients) > 1
        kept = two or ctx.passing == k.BY_OUTPUT  # what passed is written down, not found again
        passed = torch.empty_like(x) if kept else gradients[0]
        sums, dots = x.new_empty(2, pieces, channels, dtype=torch.float32)
        to_weight, to_bias, of_gradient, of_x, constant = x.new_empty(5, channels, dtype=torch.float32)
        blocks = channels // k.COLUMNS
        k.add_up_backward[pieces, blocks](
            gradients[0], gradients[-1], x, out, mean, inverse, scale, offset, passed, sums, dots, rows, share,
            ctx.passing, two, kept, channels, k.ROWS, k.COLUMNS,
        )  # fmt: skip
        k.settle_backward[(channels // k.SETTLED,)](
            sums, dots, pieces, rows, weight, inverse, to_weight, to_bias, of_gradient, of_x, constant,
            channels, k.SETTLED, k.TOGETHER,
        )  # fmt: skip
        found = torch.empty_like(x)
        k.normalise_backward[-(-rows // k.ROWS), blocks](
            passed, x, mean, scale, offset, of_gradient, of_x, constant, found, rows,
            k.FREE if kept else ctx.passing, channels, k.ROWS, k.COLUMNS,
        )  # fmt: skip
        return found, to_weight, to_bias, passed if ctx.added else None, None, None


def _rows(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _laid_out(x: Tensor) -> tuple[int, int, int, int]:
    """Rows and channels of maps, how many rows a program adds up, and how many do so for a block of channels."""
    from asterism import kernels as k

    channels = x.shape[1]
    rows = x.numel() // channels
    wanted = max(1, k.PIECES * k.COLUMNS // channels)
    share = -(-rows // (wanted * k.ROWS)) * k.ROWS
    return rows, channels, share, -(-rows // share)


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
        return _rows(x[:, :, ::stride, ::stride])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        spread = torch.empty(
            ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
        ).zero_()
        spread[:, :, :: ctx.stride, :: ctx.stride] = gradient
        return spread, None


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
        first = end
