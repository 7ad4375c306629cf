"""Distances between many points: exact for few pairs, bounded from below for all pairs by matrix products.

The exact distance of a pair is the float64 square root of the sum of squared differences, as SciPy's ``cdist`` forms
it. Computing it for all pairs of 100,000 points would take an hour; a matrix product takes a minute, but rounds:

**Bound.** Points are centred, scaled by a power of two, clipped to a box and rounded, which gives rows x with unit
roundoff u (2⁻²⁴ or 2⁻⁵³). Write X = |x_i|², Y = |x_j|². In exact arithmetic |x_i − x_j|² = X + Y − 2 x_i·x_j. The
product x_i·x_j carries an error of at most g|x_i||x_j| ≤ g(X + Y)/2, where g = du/(1 − du) ≤ 1.1du in any order of
summation. Rounding the squared norms and the three sums adds at most 6u(X + Y). Rounding the points themselves moves
a distance by at most 2u(|x_i| + |x_j|), its square by at most 8u(X + Y). With c = (1.1d + 32)u the computed
(1 − c)(X + Y) − 2 x_i·x_j is therefore never above the squared distance, and at most 2c(X + Y) below it. Moving a
point into a box is a projection, which lengthens no distance: the lower bound holds for clipped points too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Points = NDArray[np.floating]

BOX = 1024.0  # half its side, when half of the points have a norm below 1
PANEL = 1 << 28  # bytes of one panel of bounds
CHUNK = 1 << 12  # rows turned into float64 at a time
SAMPLE = 1 << 10  # rows that tell the centre and the scale; any choice of them is right
UNDERFLOW = 1e-30  # more than products of tiny coordinates can lose, in squared scaled units
SHAVE = 1 - 1e-9  # keeps bounds below distances that float64 has rounded down


@dataclass(frozen=True)
class Bounded:
    """Points prepared for lower bounds of squared distances, in scaled units.

    ``rows`` (n, d) are the centred points, ``squares`` (n,) their squared norms, ``shrunk`` (n,) the same times
    1 − c; ``slack`` is c, and ``clipped`` (n,) says which points were moved into the box.
    """

    rows: Tensor
    squares: Floats
    shrunk: Tensor
    slack: float
    scale: float
    clipped: Mask

    def __len__(self) -> int:
        return len(self.squares)

    def panels(self, which: Integers) -> Iterator[tuple[Integers, Tensor]]:
        """Bounds from the points ``which`` to all points, some rows at a time, each less its point's own ``shrunk``.

        The tensor is written over by the next panel.
        """
        itemsize = self.rows.element_size()
        height = max(1, min(len(which), PANEL // max(1, itemsize * len(self))))
        space = torch.empty((height, len(self)), dtype=self.rows.dtype, device=self.rows.device)
        columns = self.rows.T
        for part in np.array_split(which, -(-len(which) // height)) if len(which) else ():
            rows = self.rows[torch.from_numpy(part).to(self.rows.device)]
            with _full_precision():
                panel = torch.addmm(self.shrunk, rows, columns, alpha=-2, out=space[: len(part)])
            yield part, panel

    def own(self, which: Integers) -> Floats:
        """What a panel leaves out for each of its rows."""
        return (1 - self.slack) * self.squares[which]

    def length(self, squares: Floats) -> Floats:
        """Lower bounds of distances, in the points' units, from bounds of squares."""
        return SHAVE / self.scale * np.sqrt(np.maximum(squares - UNDERFLOW, 0))

    def excess(self, which: Integers) -> Floats:
        """Twice the slack times the squared norm: what two points' bound may lie below their squared distance."""
        return 2 * self.slack * self.squares[which]

    def utmost(self, squares: Floats) -> Floats:
        """Upper bounds of distances, in the points' units, from upper bounds of squares."""
        return np.sqrt(np.maximum(squares, 0) + UNDERFLOW) / (SHAVE * self.scale)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products of float32 as such: the bound does not hold for the shorter formats that torch may be told to use."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def bounded(points: Points, dtype: torch.dtype, device: str = "cpu") -> Bounded:
    """``points`` (n, d), prepared in float32 or float64."""
    sample = points[:: max(1, len(points) // SAMPLE)].astype(np.float64)
    centre = np.median(sample, axis=0)
    norms = np.linalg.norm(sample - centre, axis=1)
    norms = norms[norms > 0]
    scale = 2.0 ** -float(np.clip(np.ceil(np.log2(np.median(norms))), -500, 500)) if len(norms) else 1.0
    rows = torch.empty(points.shape, dtype=dtype)
    squares, clipped = np.empty(len(points)), np.zeros(len(points), bool)
    for start in range(0, len(points), CHUNK):
        part = slice(start, start + CHUNK)
        moved = (points[part].astype(np.float64) - centre) * scale
        clipped[part] = (np.abs(moved) > BOX).any(axis=1)
        rows[part] = torch.from_numpy(moved.clip(-BOX, BOX)).to(dtype)
        squares[part] = rows[part].double().square().sum(dim=1).numpy()
    slack = (1.1 * points.shape[1] + 32) * torch.finfo(dtype).eps / 2
    shrunk = torch.from_numpy((1 - slack) * squares).to(dtype)
    return Bounded(rows.to(device), squares, shrunk.to(device), slack, scale, clipped)


def square(points: Points) -> Floats:
    """All distances as an (n, n) matrix, equal to ``squareform(pdist(points))`` bit for bit."""
    points = points.astype(np.float64, copy=False)
    result = np.zeros((len(points), len(points)))

    def fill(start: int) -> None:
        stop = start + 128
        strip = cdist(points[start:stop], points[start:])
        result[start:stop, start:], result[start:, start:stop] = strip, strip.T

    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        list(pool.map(fill, range(0, len(points), 128)))
    return result


def between(points: Points, i: int, others: Integers) -> Floats:
    """Exact distances from one point to some others."""
    found: Floats = cdist(points[i : i + 1], points[others])[0]
    return found


def closest(points: Points, left: Integers, right: Integers) -> tuple[float, int, int]:
    """The exact distance between two groups of points, and the first pair that has it."""
    best = (np.inf, -1, -1)
    for a in _chunks(left):
        for b in _chunks(right):
            table = cdist(points[a], points[b])
            i, j = np.unravel_index(table.argmin(), table.shape)
            best = min(best, (float(table[i, j]), int(a[i]), int(b[j])))
    return best


def farthest(points: Points, left: Integers, right: Integers) -> float:
    """The largest exact distance between two groups of points."""
    return max((float(cdist(points[a], points[b]).max()) for a in _chunks(left) for b in _chunks(right)), default=0.0)


def _chunks(which: Integers) -> Iterator[Integers]:
    yield from (which[start : start + CHUNK] for start in range(0, len(which), CHUNK))
