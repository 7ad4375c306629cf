"""Eigengap: the number of nearly separate parts of the graph of neighbours, read off its Laplacian.

Paper: von Luxburg, *A tutorial on spectral clustering*, 2007, https://arxiv.org/abs/0711.0189, Sec. 8.3: with the
eigenvalues λ_1 ≤ λ_2 ≤ … of the normalised Laplacian, the k with the largest λ_(k+1) − λ_k. The graph is that of
``neighbours``; prototypes tied to none are left out, as noise is by the paper's estimate. All eigenvalues are computed:
memory grows with the square of the pool, time with its cube.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.config import Section
from asterism.distances import Floats
from asterism.estimators.neighbours import neighbours
from asterism.estimators.pool import Counted, Pool, Search
from asterism.estimators.space import Scale, placed

NEARLY = 0.9  # of the largest gap


class Eigengap(Section):
    """Largest gap between eigenvalues of the graph of neighbours."""

    name: Literal["eigengap"] = "eigengap"
    scale: Scale = "centred"
    weighted: bool = True  # ties count by the sizes of both clusters
    neighbours: Annotated[int, Field(ge=1)] = 10
    most: Annotated[int, Field(ge=2)] = 100  # classes


def eigengap(pool: Pool, settings: Eigengap) -> Counted:
    """The number of eigenvalues before the largest gap, and all gaps."""
    found = placed(pool, settings.scale, weighted=settings.weighted)
    if len(found.rows) < 3:
        return Counted(min(1, len(pool.prototypes)))
    with threadpool_limits(1):
        values = spectrum(neighbours(found, settings.neighbours).toarray(), settings.most + 1)
    if len(values) < 2:
        return Counted(1)
    gaps = np.diff(values)
    classes = np.arange(1, len(values))
    return Counted(int(classes[gaps.argmax()]), search=Search.of(classes, gaps, gaps >= NEARLY * gaps.max()))


def spectrum(ties: Floats, most: int) -> Floats:
    """The ``most`` smallest eigenvalues of the normalised Laplacian of a graph, its isolated nodes left out."""
    tied = ties.sum(axis=1) > 0
    ties = ties[np.ix_(tied, tied)]
    if not len(ties):
        return np.empty(0)
    root = np.sqrt(ties.sum(axis=1))
    laplacian = np.eye(len(ties)) - ties / root[:, None] / root
    values: Floats = eigh(laplacian, eigvals_only=True, subset_by_index=(0, min(most, len(ties)) - 1))
    return values
