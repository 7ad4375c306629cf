"""Potential Prototype Merge, the paper's estimate: the largest number of dense regions over a rising radius.

``ppm`` is printed (Eq. 8), ``ppm-exact`` takes the maximum over every radius. Departures: see ``prototypes``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism import prototypes
from asterism.config import Section
from asterism.estimators.pool import Counted, Pool
from asterism.prototypes import STEPS


class Ppm(Section):
    """The paper's estimate as printed."""

    name: Literal["ppm"] = "ppm"
    steps: Annotated[int, Field(ge=1)] = STEPS  # E, Eq. 8


class PpmExact(Section):
    """The paper's estimate over all radii instead of a grid."""

    name: Literal["ppm-exact"] = "ppm-exact"


def ppm(pool: Pool, settings: Ppm) -> Counted:
    """The largest count on the paper's grid of radii, and the grid."""
    return Counted(prototypes.ppm(pool.tree, settings.steps), prototypes.paper_grid(pool.tree, settings.steps))


def ppm_exact(pool: Pool, settings: PpmExact) -> Counted:
    """The largest count over all radii, and the whole curve."""
    return Counted(prototypes.ppm_exact(pool.tree), prototypes.exact_curve(pool.tree))
