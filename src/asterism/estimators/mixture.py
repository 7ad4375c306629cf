"""Known classes without known data: the paper's prototype augmentation (Eq. 12), mixed with the pool.

Departures: C^U in the printed range of c is read as C^L; min d(Z^U) is the smallest distance between distinct
prototypes, which a repeated one would make 0; where rows are scaled to unit norm, Eq. 12 is applied after that, since
head rows and representations differ in norm severalfold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.distances import Floats, Integers, Points
from asterism.errors import AsterismError
from asterism.estimators.pool import Pool
from asterism.estimators.space import placed, unit
from asterism.estimators.sweep import Partition, sweep
from asterism.metrics import clustered_accuracy, count_table
from asterism.seeds import number
from asterism.spanning import tree

DEVIATION = 0.1  # of each coordinate of n: the paper's variance is 0.01


@dataclass(frozen=True)
class Mixture:
    """Labelled rows first, ``labels`` (m,) of them, then the pool's distinct prototypes; ``weights`` of all rows."""

    rows: Floats
    weights: Floats
    labels: Integers
    classes: int

    def accuracy(self, dealt: Integers) -> float:
        """How well clusters ``dealt`` to all rows tell the labelled ones apart, in percent, matched one to one."""
        table = count_table(self.labels, dealt[: len(self.labels)], self.classes, int(dealt.max()) + 1)
        found = clustered_accuracy(table)
        assert found is not None  # there are labelled rows
        return found

    def partitions(self, most: int, *, seed: int, restarts: int) -> list[Partition]:
        """Labelled and unlabelled rows clustered together, for each K from C^L to ``most`` (0: to twice C^L)."""
        last = most or 2 * self.classes
        if last < self.classes:
            raise AsterismError(
                f"most = {most} clusters are fewer than the {self.classes} known classes",
                where="estimator.most",
                fix="known classes are counted too; 0 means twice as many",
            )
        with threadpool_limits(1):
            found = list(sweep(self.rows, self.weights, self.classes, last, seed=seed, restarts=restarts))
        if not found:
            raise AsterismError("known prototypes repeat: they cannot be told apart", where="known")
        return found


def mixture(pool: Pool, known: Points, scale: Literal["raw", "unit"], copies: int) -> Mixture:
    """The pool, of two distinct prototypes or more, beside ``copies`` augmented rows of each known prototype."""
    unlabelled = placed(pool, scale, weighted=False)
    prototypes = unit(known) if scale == "unit" else known.astype(np.float64)
    labelled = augmented(prototypes, copies, tree(unlabelled.rows).smallest, pool.seed)
    return Mixture(
        np.concatenate([labelled, unlabelled.rows]),
        np.concatenate([np.ones(len(labelled)), unlabelled.weights]),
        np.repeat(np.arange(len(known)), copies),
        len(known),
    )


def augmented(prototypes: Floats, copies: int, smallest: float, seed: int) -> Floats:
    """Eq. 12: z_ci = p_c + n·min d(Z^U), ``copies`` rows (C·copies, d) of each prototype, one class after another."""
    rng = np.random.default_rng(number(seed, "prototype augmentation"))
    noise = rng.normal(0, DEVIATION, (len(prototypes) * copies, prototypes.shape[1]))
    return prototypes.repeat(copies, axis=0) + smallest * noise
