"""Gap statistic: the number of clusters at which K-means beats what it would do on rows without any classes.

Paper: Tibshirani, Walther and Hastie, *Estimating the number of clusters in a data set via the gap statistic*, 2001:
Gap(k) = mean over references of log W_k − log W_k of the pool, W_k the sum of squares within clusters, references
uniform in a box along the pool's principal axes.

Departures: the estimate is the smallest k whose gap is within s of the largest gap, s the standard error there (rule
``global``). The published rule, the smallest k with Gap(k) ≥ Gap(k + 1) − s_(k+1), is ``first``: it stops at 1 wherever
classes lie about equally far apart, as centred ones do, since then the gap falls before it rises. Prototypes and
references count by the images behind them (``weighted``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.config import Section
from asterism.distances import Floats
from asterism.estimators.pool import Counted, Pool, Search
from asterism.estimators.space import Placed, Scale, placed
from asterism.estimators.sweep import sweep
from asterism.seeds import number

FLAT = 1e-12  # a sum of squares is taken for this share of that of one cluster where it is smaller


class Gap(Section):
    """Gap statistic of K-means."""

    name: Literal["gap"] = "gap"
    scale: Scale = "centred"
    weighted: bool = True  # prototypes count by the size of their cluster
    most: Annotated[int, Field(ge=2)] = 100  # classes
    rule: Literal["global", "first"] = "global"
    references: Annotated[int, Field(ge=1)] = 5  # B
    restarts: Annotated[int, Field(ge=1)] = 1


class Step(NamedTuple):
    """The gap of a number of clusters, and its standard error s_k."""

    clusters: int
    gap: float
    error: float


def gap(pool: Pool, settings: Gap) -> Counted:
    """The number of clusters that meets the rule, and the gaps that were looked at."""
    found = placed(pool, settings.scale, weighted=settings.weighted)
    if len(found.rows) < 3:
        return Counted(min(1, len(pool.prototypes)))
    steps: list[Step] = []
    with threadpool_limits(1):
        for step in _steps(found, settings, pool.seed):
            steps.append(step)
            if settings.rule == "first" and met(steps):
                break
    best = steps[-2] if settings.rule == "first" and met(steps) else max(steps, key=lambda step: step.gap)
    classes, gaps = np.array([step.clusters for step in steps]), np.array([step.gap for step in steps])
    search = Search.of(classes, gaps, gaps >= best.gap - best.error)
    return Counted(search.near[0] if settings.rule == "global" else best.clusters, search=search)


def met(steps: list[Step]) -> bool:
    """Whether the last number but one meets the published rule."""
    return len(steps) > 1 and steps[-2].gap >= steps[-1].gap - steps[-1].error


def _steps(found: Placed, settings: Gap, seed: int) -> Iterator[Step]:
    """Gap and error from one cluster on, as long as rows can be told apart."""
    rng = np.random.default_rng(number(seed, "gap references"))
    found = Placed(found.rows / (np.abs(found.rows).max() or 1.0), found.weights)  # squares of any unit are numbers
    pools = [found.rows, *uniform(found, settings.references, rng)]
    last = min(settings.most, len(found.rows) - 1)
    dealt = [
        sweep(rows, found.weights, 1, last, seed=number(seed, "gap", i), restarts=settings.restarts)
        for i, rows in enumerate(pools)
    ]
    floor = 0.0
    for clusters, (own, *references) in enumerate(zip(*dealt, strict=False), start=1):
        floor = floor or FLAT * own.inertia
        logs = np.log([max(partition.inertia, floor) for partition in references])
        error = float(logs.std() * np.sqrt(1 + 1 / settings.references))
        yield Step(clusters, float(logs.mean() - np.log(max(own.inertia, floor))), error)


def uniform(found: Placed, count: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Sets of as many rows, uniform in the smallest box along the principal axes that holds the rows."""
    middle = np.average(found.rows, axis=0, weights=found.weights)
    axes = np.linalg.svd((found.rows - middle) * np.sqrt(found.weights)[:, None], full_matrices=False)[2]
    turned = (found.rows - middle) @ axes.T
    low, high = turned.min(axis=0), turned.max(axis=0)
    for _ in range(count):
        yield rng.uniform(low, high, turned.shape)  # not turned back: no distance changes by it
