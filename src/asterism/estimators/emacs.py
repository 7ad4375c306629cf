"""A stand-in for EMaCS, which is not published under that name: the estimator of DTC and AutoNovel.

Papers: Han et al., *Learning to Discover Novel Visual Categories via Deep Transfer Clustering*, 2019,
https://arxiv.org/abs/1908.09884, Sec. 3.3, and *AutoNovel*, 2020, https://arxiv.org/abs/2002.05714. K-means over
labelled and unlabelled rows; the estimate is the mean of the K that tells the labelled ones apart best and the K at
which the unlabelled ones have the highest silhouette, less C^L.

Departures: the paper says of EMaCS only that it needs labelled known classes, so no number of this method is one of
EMaCS. There is no known data, so Eq. 12 makes the labelled rows (see ``mixture``); K-means is not held to the labels of
some of them; all K from C^L to 2·C^L are tried, and clusters of few rows are not dropped afterwards.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.config import Section
from asterism.distances import square
from asterism.estimators.mixture import mixture
from asterism.estimators.pool import Counted, Pool, Search
from asterism.estimators.silhouette import silhouette_of
from asterism.estimators.space import placed


class Emacs(Section):
    """Accuracy on known classes and silhouette of the rest, half each; not EMaCS itself."""

    name: Literal["emacs"] = "emacs"
    scale: Literal["raw", "unit"] = "unit"
    copies: Annotated[int, Field(ge=1)] = 10  # K^U of Eq. 12, the paper's ten participants
    most: Annotated[int, Field(ge=0)] = 0  # K_max, known classes counted; 0: twice the known classes
    restarts: Annotated[int, Field(ge=1)] = 3


def emacs(pool: Pool, settings: Emacs) -> Counted:
    """The mean of both choices, rounded down; the search shows silhouettes, and both choices as its near ones."""
    known = pool.labelled("emacs")
    if len(placed(pool, settings.scale, weighted=False).rows) < 2:
        return Counted(min(1, len(pool.prototypes)))
    mixed = mixture(pool, known, settings.scale, settings.copies)
    dealt = mixed.partitions(settings.most, seed=pool.seed, restarts=settings.restarts)
    start = len(mixed.labels)
    distances, weights = square(mixed.rows[start:]), mixed.weights[start:]
    classes = np.array([partition.clusters - len(known) for partition in dealt])
    with threadpool_limits(1):
        silhouettes = np.array([silhouette_of(distances, weights, partition.labels[start:]) for partition in dealt])
    accuracies = np.array([mixed.accuracy(partition.labels) for partition in dealt])
    chosen = np.isin(np.arange(len(classes)), [accuracies.argmax(), silhouettes.argmax()])
    count = int(classes[accuracies.argmax()] + classes[silhouettes.argmax()]) // 2
    return Counted(min(len(pool.prototypes), max(1, count)), search=Search.of(classes, silhouettes, chosen))
