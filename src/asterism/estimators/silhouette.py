"""Silhouette: the number of clusters at which prototypes are nearest to their own cluster, next to the second nearest.

Paper: Rousseeuw, *Silhouettes: a graphical aid*, 1987. Departures: a prototype counts as often as there are images
behind it (``weighted``), never as its own neighbour; its own distance to itself is left out by its whole weight. A
silhouette needs two clusters, so where none is above 0 the answer is 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.config import Section
from asterism.distances import Floats, Integers, square
from asterism.estimators.pool import Counted, Pool, Search
from asterism.estimators.space import Scale, placed
from asterism.estimators.sweep import sweep

NEARLY = 0.01  # of silhouette below the best


class Silhouette(Section):
    """Largest mean silhouette of K-means."""

    name: Literal["silhouette"] = "silhouette"
    scale: Scale = "centred"
    weighted: bool = True  # prototypes count by the size of their cluster
    most: Annotated[int, Field(ge=2)] = 100  # classes
    restarts: Annotated[int, Field(ge=1)] = 3


def silhouette(pool: Pool, settings: Silhouette) -> Counted:
    """The number of clusters with the largest silhouette, and the silhouette of each number from 2 on."""
    rows, weights = placed(pool, settings.scale, weighted=settings.weighted)
    distances, last = square(rows), min(settings.most, len(rows) - 1)
    with threadpool_limits(1):
        dealt = sweep(rows, weights, 2, last, seed=pool.seed, restarts=settings.restarts)
        found = [(partition.clusters, silhouette_of(distances, weights, partition.labels)) for partition in dealt]
    if not found:
        return Counted(min(1, len(pool.prototypes)))
    classes, scores = np.array([n for n, _ in found]), np.array([score for _, score in found])
    search = Search.of(classes, scores, scores >= scores.max() - NEARLY)
    return Counted(int(classes[scores.argmax()]) if scores.max() > 0 else 1, search=search)


def silhouette_of(distances: Floats, weights: Floats, labels: Integers) -> float:
    """The mean of (b − a)/max(a, b) over rows; −1 where there is one cluster only.

    a is a row's mean distance to the others of its cluster, b that to those of the nearest other one. A row alone
    in its cluster counts 0.
    """
    _, labels = np.unique(labels, return_inverse=True)
    held = np.bincount(labels, weights)
    if len(held) < 2:
        return -1.0
    shares = np.zeros((len(labels), len(held)))
    shares[np.arange(len(labels)), labels] = weights
    sums = distances @ shares
    own = np.arange(len(labels)), labels
    others = held[labels] - weights
    inside = sums[own] / np.where(others > 0, others, 1)
    sums /= held
    sums[own] = np.inf
    outside = sums.min(axis=1)
    largest = np.maximum(inside, outside)
    value = np.where((others > 0) & (largest > 0), (outside - inside) / np.where(largest > 0, largest, 1), 0)
    return float(np.average(value, weights=weights))
