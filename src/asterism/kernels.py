"""Triton kernels of batch normalisation and of SGD; ``asterism.fused`` launches them.

Feature maps are bfloat16 and lie as rows, (images · pixels, channels). Each pass over a map is one kernel, and what a
channel needs is settled once between the passes, so that a pass costs what its bytes cost. Sums go by pieces of rows
that are then added in one order: the same bits every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS, COLUMNS = 32, 64  # of a map, read at a time
PIECES = 528  # programs that add up one map: four for each of an H200's 132 multiprocessors
WARPS = 4  # of a program that goes over a map
SETTLED, TOGETHER = 16, 128  # channels of a program that settles, and pieces it reads at a time
SPAN = 1024  # parameters of a program of SGD
FREE, BY_INPUT, BY_OUTPUT = 0, 1, 2  # where a gradient passes: everywhere, where the input, where the output was > 0


@triton.jit
def _place(row, column, CHANNELS: tl.constexpr):
    return row[:, None] * CHANNELS + column[None, :]


@triton.jit
def add_up(x, centre, sums, squares, rows, share, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums and squares of x − centre over each piece of ``share`` rows; a centre near the mean loses no digits."""
    piece, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    middle = tl.load(centre + column)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, share, ROWS):
        row = piece * share + first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None]
        value = tl.load(x + _place(row, column, CHANNELS), mask=inside, other=0).to(tl.float32)
        value = tl.where(inside, value - middle[None, :], 0)
        total += value
        square += value * value
    tl.store(sums + piece * CHANNELS + column, tl.sum(total, axis=0))
    tl.store(squares + piece * CHANNELS + column, tl.sum(square, axis=0))


@triton.jit
def _added(pieces, one, two, column, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr):
    first_total = tl.zeros((TOGETHER, COLUMNS), tl.float32)
    second_total = tl.zeros((TOGETHER, COLUMNS), tl.float32)
    for first in range(0, pieces, TOGETHER):
        piece = first + tl.arange(0, TOGETHER)
        place, inside = _place(piece, column, CHANNELS), (piece < pieces)[:, None]
        first_total += tl.load(one + place, mask=inside, other=0)
        second_total += tl.load(two + place, mask=inside, other=0)
    return tl.sum(first_total, axis=0), tl.sum(second_total, axis=0)


@triton.jit
def settle(
    sums, squares, pieces, rows, weight, bias, running_mean, running_var, counter, momentum, eps,
    mean, inverse, scale, offset,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Mean, 1 / deviation, and scale and offset of the normalisation; running statistics follow, as torch's do."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    middle = tl.load(running_mean + column)
    shift, square = _added(pieces, sums, squares, column, CHANNELS, COLUMNS, TOGETHER)
    shift /= rows
    variance = square / rows - shift * shift
    variance = tl.where(variance < 0, 0, variance)
    found, inverted = middle + shift, 1 / tl.sqrt(variance + eps)
    factor = tl.load(weight + column) * inverted
    tl.store(mean + column, found)
    tl.store(inverse + column, inverted)
    tl.store(scale + column, factor)
    tl.store(offset + column, tl.load(bias + column) - found * factor)
    tl.store(running_mean + column, middle + momentum * shift)
    spread = tl.load(running_var + column)
    tl.store(running_var + column, spread + momentum * (variance * (rows / (rows - 1)) - spread))
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


@triton.jit
def normalise(
    x, scale, offset, beside, out, rows,
    ADDED: tl.constexpr, RECTIFIED: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The map as scale · x + offset, with a shortcut added and rectified where wanted."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place, inside = _place(row, column, CHANNELS), (row < rows)[:, None]
    value = tl.load(x + place, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(scale + column)[None, :] + tl.load(offset + column)[None, :]
    if ADDED:
        value += tl.load(beside + place, mask=inside, other=0).to(tl.float32)
    if RECTIFIED:
        value = tl.where(value < 0, 0, value)  # what is not a number stays so, for divergence must be seen
    tl.store(out + place, value.to(tl.bfloat16), mask=inside)


@triton.jit
def _passing(
    gradient, second, x, other, scale, offset, place, inside, column, PASSING: tl.constexpr, TWO: tl.constexpr
):
    value = tl.load(gradient + place, mask=inside, other=0).to(tl.float32)
    if TWO:
        value += tl.load(second + place, mask=inside, other=0).to(tl.float32)
    if PASSING == 1:
        before = x * tl.load(scale + column)[None, :] + tl.load(offset + column)[None, :]
        value = tl.where(before > 0, value, 0)
    if PASSING == 2:
        value = tl.where(tl.load(other + place, mask=inside, other=0) > 0, value, 0)
    return value


@triton.jit
def add_up_backward(
    gradient, second, x, out, mean, inverse, scale, offset, passed, sums, dots, rows, share,
    PASSING: tl.constexpr, TWO: tl.constexpr, KEPT: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient that passes, or of two, and of it times the normalised x; ``passed`` keeps it if wanted."""
    piece, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    middle, inverted = tl.load(mean + column)[None, :], tl.load(inverse + column)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    dot = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, share, ROWS):
        row = piece * share + first + tl.arange(0, ROWS)
        place, inside = _place(row, column, CHANNELS), (row < rows)[:, None]
        value = tl.load(x + place, mask=inside, other=0).to(tl.float32)
        passing = _passing(gradient, second, value, out, scale, offset, place, inside, column, PASSING, TWO)
        if KEPT:
            tl.store(passed + place, passing.to(tl.bfloat16), mask=inside)
        total += passing
        dot += passing * (value - middle) * inverted
    tl.store(sums + piece * CHANNELS + column, tl.sum(total, axis=0))
    tl.store(dots + piece * CHANNELS + column, tl.sum(dot, axis=0))


@triton.jit
def settle_backward(
    sums, dots, pieces, rows, weight, inverse, to_weight, to_bias, of_gradient, of_x, constant,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Gradients of weight and bias, and what of gradient, of x − mean and of 1 makes up the gradient of x."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total, dot = _added(pieces, sums, dots, column, CHANNELS, COLUMNS, TOGETHER)
    inverted = tl.load(inverse + column)
    factor = tl.load(weight + column) * inverted
    tl.store(to_weight + column, dot)
    tl.store(to_bias + column, total)
    tl.store(of_gradient + column, factor)
    tl.store(of_x + column, -factor * inverted * dot / rows)
    tl.store(constant + column, -factor * total / rows)


@triton.jit
def normalise_backward(
    gradient, x, mean, scale, offset, of_gradient, of_x, constant, out, rows,
    PASSING: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of x."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place, inside = _place(row, column, CHANNELS), (row < rows)[:, None]
    value = tl.load(x + place, mask=inside, other=0).to(tl.float32)
    passing = _passing(gradient, gradient, value, x, scale, offset, place, inside, column, PASSING, False)
    found = tl.load(of_gradient + column)[None, :] * passing + tl.load(constant + column)[None, :]
    found += tl.load(of_x + column)[None, :] * (value - tl.load(mean + column)[None, :])
    tl.store(out + place, found.to(tl.bfloat16), mask=inside)


@triton.jit
def descend(parameters, gradient, velocity, lr, momentum, weight_decay, first, end, SPAN: tl.constexpr):
    """One step of SGD in place on the parameters from ``first`` to ``end``."""
    place = first + tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = place < end
    value = tl.load(parameters + place, mask=inside)
    step = tl.load(gradient + place, mask=inside) + weight_decay * value
    speed = momentum * tl.load(velocity + place, mask=inside) + step
    tl.store(velocity + place, speed, mask=inside)
    tl.store(parameters + place, value - tl.load(lr) * speed, mask=inside)
