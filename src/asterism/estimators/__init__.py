"""Estimators of the number of novel classes, by name: each turns a pool of prototypes into a count.

An estimator reads the pool and its settings and nothing else. Adding one is a file with a settings class and a
function, and a line each in ``ESTIMATORS`` and ``AnyEstimator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from asterism.config import Section, override, validate
from asterism.errors import AsterismError
from asterism.estimators.eigengap import Eigengap, eigengap
from asterism.estimators.emacs import Emacs, emacs
from asterism.estimators.gap import Gap, gap
from asterism.estimators.louvain import Louvain, louvain
from asterism.estimators.macc import Macc, macc
from asterism.estimators.pool import Counted, Estimator, Pool, Search
from asterism.estimators.ppm import Ppm, PpmExact, ppm, ppm_exact
from asterism.estimators.silhouette import Silhouette, silhouette

__all__ = [
    "ESTIMATORS",
    "AnyEstimator",
    "Counted",
    "Estimator",
    "Pool",
    "Ppm",
    "PpmExact",
    "Search",
    "estimator_named",
    "settings_of",
]

AnyEstimator = Annotated[
    Ppm | PpmExact | Macc | Emacs | Silhouette | Gap | Eigengap | Louvain, Field(discriminator="name")
]

STAND_IN = "stand-in: EMaCS is not published under this name; this is the DTC/AutoNovel-type estimator"

ESTIMATORS: Mapping[str, Estimator] = {
    "ppm": Estimator(Ppm, ppm, "the paper's 51 radii", by_radius=True),
    "ppm-exact": Estimator(PpmExact, ppm_exact, "every radius", by_radius=True),
    "macc": Estimator(Macc, macc, "accuracy of K-means on known prototypes", needs_known=True),
    "emacs": Estimator(Emacs, emacs, STAND_IN, needs_known=True),
    "silhouette": Estimator(Silhouette, silhouette, "silhouette of K-means"),
    "gap": Estimator(Gap, gap, "gap statistic of K-means"),
    "eigengap": Estimator(Eigengap, eigengap, "spectrum of the graph of neighbours"),
    "louvain": Estimator(Louvain, louvain, "communities of the graph of neighbours"),
}


def estimator_named(method: str) -> Estimator:
    """The estimator of that name, or an error that says which there are."""
    if method not in ESTIMATORS:
        raise AsterismError(f"no such method: {method!r}", where="method", fix=f"one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[method]


def settings_of(method: str, assignments: Sequence[str] = ()) -> Section:
    """The settings of a method, each ``key=value`` put in."""
    return validate(estimator_named(method).params, override({}, assignments), source=method)
