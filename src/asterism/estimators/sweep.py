"""K-means for every number of clusters in a range, in one sweep.

A restart begins by k-means++ with the smallest number. From each number to the next it keeps its centres and adds one
by the same rule, so that Lloyd's steps have little left to do and neighbouring numbers are compared on like terms; of
all restarts the tightest partition counts, number by number. That makes a scan of all candidates as cheap as a dozen
separate fits, which is why no bracketing search is used: accuracy and silhouette are not unimodal in the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from asterism.distances import Floats, Integers, Points
from asterism.estimators.space import merged
from asterism.seeds import number
from asterism.spanning import distinct

Single = NDArray[np.float32]

STEPS = 50  # of Lloyd's rule at one number of clusters, at most


class Partition(NamedTuple):
    """Rows dealt to ``clusters`` clusters by ``labels`` (n,), at a weighted sum of squares of ``inertia``."""

    clusters: int
    labels: Integers
    inertia: float


def sweep(points: Points, weights: Floats, first: int, last: int, *, seed: int, restarts: int) -> Iterator[Partition]:
    """The best partition of ``points`` (n, d) for each number of clusters from ``first`` to ``last``.

    Rows in another order are dealt alike. The sweep ends early where there are no more rows that single precision can
    tell apart. Run it on one thread: sums on several are not always the same.
    """
    if not len(points):
        return
    rows, held = merged(np.asarray(points, np.float64), weights)
    _, place = distinct(np.asarray(points, np.float64))
    moved = rows - rows.mean(axis=0)
    scale = float(np.abs(moved).max()) or 1.0
    single = (moved / scale).astype(np.float32)  # within ±1, which changes no partition
    runs = [_run(single, held, first, last, np.random.default_rng(number(seed, i))) for i in range(restarts)]
    for tried in zip(*runs, strict=False):
        best = min(tried, key=lambda partition: partition.inertia)
        yield Partition(best.clusters, best.labels[place], best.inertia * scale**2)


def _run(rows: Single, weights: Floats, first: int, last: int, rng: np.random.Generator) -> Iterator[Partition]:
    """One restart."""
    squares = np.einsum("ij,ij->i", rows, rows)
    centres = np.empty((0, rows.shape[1]), np.float32)
    near = np.full(len(rows), np.inf)  # squared distance to the nearest centre
    for clusters in range(first, min(last, len(rows)) + 1):
        while len(centres) < clusters:
            chosen = _seeded(rows, squares, weights, near, rng)
            if chosen is None:
                return
            near = np.minimum(near, _squared(rows, squares, rows[[chosen]])[:, 0])
            centres = np.concatenate([centres, rows[[chosen]]])
        centres, labels = _lloyd(rows, weights, centres)
        apart = (rows - centres[labels]).astype(np.float64)
        near = np.einsum("ij,ij->i", apart, apart)
        yield Partition(clusters, labels, float(weights @ near))


def _seeded(rows: Single, squares: Single, weights: Floats, near: Floats, rng: np.random.Generator) -> int | None:
    """k-means++: of a few rows drawn by their weighted squared distance the one that helps most; None of none."""
    chances = weights if np.isinf(near).all() else weights * near
    total = chances.sum()
    if total <= 0:
        return None
    tries = 2 + int(np.log(len(rows)))
    drawn = np.searchsorted(np.cumsum(chances), rng.random(tries) * total, side="right").clip(max=len(rows) - 1)
    left = weights @ np.minimum(near[:, None], _squared(rows, squares, rows[drawn]))
    return int(drawn[left.argmin()])


def _squared(rows: Single, squares: Single, centres: Single) -> Floats:
    """Squared distances (n, k), 0 for a row and itself."""
    own = np.einsum("ij,ij->i", centres, centres)
    found = squares[:, None] + own - 2 * (rows @ centres.T)
    noise = 4 * np.finfo(np.float32).eps * (squares[:, None] + own)
    return np.where(found > noise, found, 0).astype(np.float64)


def _lloyd(rows: Single, weights: Floats, centres: Single) -> tuple[Single, Integers]:
    """Centres and labels after Lloyd's steps; a centre that lost its rows takes the one that costs most."""
    labels = np.full(len(rows), -1)
    for _ in range(STEPS):
        costs = np.einsum("ij,ij->i", centres, centres) - 2 * (rows @ centres.T)
        fresh = costs.argmin(axis=1)
        _refill(rows, weights, centres, fresh)
        if np.array_equal(fresh, labels):
            break
        labels = fresh
        centres = _means(rows, weights, labels, len(centres))
    return centres, labels


def _means(rows: Single, weights: Floats, labels: Integers, clusters: int) -> Single:
    held = np.bincount(labels, weights, clusters)
    shares = (weights / held[labels]).astype(np.float32)
    which = np.arange(len(rows) + 1)
    means: Single = sparse.csc_matrix((shares, labels, which), shape=(clusters, len(rows))) @ rows
    return means


def _refill(rows: Single, weights: Floats, centres: Single, labels: Integers) -> None:
    """Gives each empty cluster one row, in place."""
    sizes = np.bincount(labels, minlength=len(centres))
    for empty in np.flatnonzero(sizes == 0):
        apart = rows - centres[labels]
        costs = np.where(sizes[labels] > 1, weights * np.einsum("ij,ij->i", apart, apart), -1)
        taken = int(costs.argmax())
        sizes[labels[taken]] -= 1
        labels[taken], sizes[empty] = empty, 1
