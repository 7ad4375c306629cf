"""Louvain: communities of the graph of neighbours, found by moving prototypes as long as modularity grows.

Paper: Blondel et al., *Fast unfolding of communities in large networks*, 2008, https://arxiv.org/abs/0803.0476, on the
graph of ``neighbours``. A community needs two prototypes, as a dense region of the paper's estimate does. This method
weighs no candidates against each other, so it has neither curve nor search.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.config import Section
from asterism.estimators.neighbours import neighbours
from asterism.estimators.pool import Counted, Pool
from asterism.estimators.space import Scale, placed
from asterism.seeds import number

REGION = 2  # prototypes, the paper's n_size


class Louvain(Section):
    """Communities of the graph of neighbours."""

    name: Literal["louvain"] = "louvain"
    scale: Scale = "centred"
    weighted: bool = True  # ties count by the sizes of both clusters
    neighbours: Annotated[int, Field(ge=1)] = 5
    resolution: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # larger: more and smaller communities


def louvain(pool: Pool, settings: Louvain) -> Counted:
    """The number of communities of two prototypes or more."""
    import networkx

    found = placed(pool, settings.scale, weighted=settings.weighted)
    if len(found.rows) < 3:
        return Counted(min(1, len(pool.prototypes)))
    with threadpool_limits(1):
        ties = neighbours(found, settings.neighbours)
    communities = networkx.community.louvain_communities(
        networkx.from_scipy_sparse_array(ties),
        resolution=settings.resolution,
        seed=number(pool.seed, "louvain") % 2**32,
    )
    return Counted(max(1, sum(len(community) >= REGION for community in communities)))
