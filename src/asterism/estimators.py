"""Estimators of the number of novel classes, by name: each turns a pool of prototypes into a count.

An estimator reads the pool and its settings and nothing else. Adding one is a settings class, a function and a line in
``ESTIMATORS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from asterism import prototypes
from asterism.config import Section
from asterism.distances import Integers, Points
from asterism.prototypes import STEPS, Curve
from asterism.spanning import Tree
from asterism.spanning import tree as spanning_tree


class Ppm(Section):
    """The paper's estimate as printed."""

    name: Literal["ppm"] = "ppm"
    steps: Annotated[int, Field(ge=1)] = STEPS  # E, Eq. 8


class PpmExact(Section):
    """The paper's estimate over all radii instead of a grid."""

    name: Literal["ppm-exact"] = "ppm-exact"


@dataclass(frozen=True)
class Pool:
    """All prototypes (n, d) that sites sent, and the sizes (n,) of their clusters; ``grow`` makes their tree."""

    prototypes: Points
    sizes: Integers
    grow: Callable[[], Tree]

    @classmethod
    def of(cls, prototypes: Points, sizes: Integers | None = None, device: str = "cpu") -> Pool:
        """The pool of these prototypes, of equal sizes where none are given."""
        sizes = np.ones(len(prototypes), np.int64) if sizes is None else sizes
        return cls(prototypes, sizes, lambda: spanning_tree(prototypes, device=device))

    @cached_property
    def tree(self) -> Tree:
        """The smallest spanning tree, grown when it is first asked for."""
        return self.grow()


@dataclass(frozen=True)
class Counted:
    """An estimate, and the counts that it was chosen from where the method has such."""

    count: int
    curve: Curve | None = None


@dataclass(frozen=True)
class Estimator:
    """One method: its settings, and how it counts."""

    params: type[Section]
    count: Callable[[Pool, Any], Counted]


def ppm(pool: Pool, settings: Ppm) -> Counted:
    """The largest count on the paper's grid of radii, and the grid."""
    return Counted(prototypes.ppm(pool.tree, settings.steps), prototypes.paper_grid(pool.tree, settings.steps))


def ppm_exact(pool: Pool, settings: PpmExact) -> Counted:
    """The largest count over all radii, and the whole curve."""
    return Counted(prototypes.ppm_exact(pool.tree), prototypes.exact_curve(pool.tree))


ESTIMATORS: Mapping[str, Estimator] = {
    "ppm": Estimator(Ppm, ppm),
    "ppm-exact": Estimator(PpmExact, ppm_exact),
}
