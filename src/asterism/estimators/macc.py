"""MACC, the largest accuracy: the number of clusters at which K-means tells the known classes apart best.

Paper: Vaze et al., *Generalized Category Discovery*, 2022, https://arxiv.org/abs/2201.02609, Sec. 3.3, as adapted to a
federation without known data in the appendix of the paper (Eq. 12, see ``mixture``): labelled and unlabelled rows are
clustered together, and the estimate is the best K less C^L.

Departures: every K from C^L to K_max is tried (see ``sweep``) instead of a bounded Brent or halving search, K_max is
2·C^L instead of 1,000, and of equally accurate K the smallest counts. A pool that is not empty holds a class: where
K = C^L is best, the answer is 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from asterism.config import Section
from asterism.estimators.mixture import mixture
from asterism.estimators.pool import Counted, Pool, Search
from asterism.estimators.space import placed

NEARLY = 1.0  # points of accuracy below the best


class Macc(Section):
    """Largest accuracy on known classes, which the head's rows stand for."""

    name: Literal["macc"] = "macc"
    scale: Literal["raw", "unit"] = "unit"  # its paper clusters rows of unit norm
    copies: Annotated[int, Field(ge=1)] = 10  # K^U of Eq. 12, the paper's ten participants
    most: Annotated[int, Field(ge=0)] = 0  # K_max, known classes counted; 0: twice the known classes
    restarts: Annotated[int, Field(ge=1)] = 3


def macc(pool: Pool, settings: Macc) -> Counted:
    """K* − C^L, and the accuracy at every K."""
    known = pool.labelled("macc")
    if len(placed(pool, settings.scale, weighted=False).rows) < 2:
        return Counted(min(1, len(pool.prototypes)))
    mixed = mixture(pool, known, settings.scale, settings.copies)
    dealt = mixed.partitions(settings.most, seed=pool.seed, restarts=settings.restarts)
    classes = np.array([partition.clusters - len(known) for partition in dealt])
    scores = np.array([mixed.accuracy(partition.labels) for partition in dealt])
    search = Search.of(classes, scores, scores >= scores.max() - NEARLY)
    return Counted(min(len(pool.prototypes), max(1, int(classes[scores.argmax()]))), search=search)
