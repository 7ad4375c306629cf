"""Where prototypes lie when a method compares them, and their order there, which no order of the pool can change."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from asterism.distances import Floats, Integers, Points
from asterism.estimators.pool import Pool
from asterism.spanning import distinct

Scale = Literal["raw", "unit", "centred"]  # as sent; of unit norm; moved by their mean and then of unit norm


class Placed(NamedTuple):
    """Distinct rows (m, d) in the order of their bytes, and how much each weighs (m,)."""

    rows: Floats
    weights: Floats


def placed(pool: Pool, scale: Scale, *, weighted: bool) -> Placed:
    """The pool's prototypes, each as heavy as the images behind it if ``weighted``, else all as heavy as one.

    Centring is a departure where a method's paper has none: representations after a rectifier share a large common
    direction, which says nothing about classes.
    """
    sizes = pool.sizes if weighted else np.ones(len(pool.prototypes), np.int64)
    rows, weights = merged(pool.prototypes.astype(np.float64), sizes.astype(np.float64))
    if scale == "raw" or len(rows) < 2:
        return Placed(rows, weights)
    middle = np.average(rows, axis=0, weights=weights) if scale == "centred" else 0.0
    return merged(unit(rows - middle), weights)


def unit(rows: Points) -> Floats:
    """Each row divided by its norm; a row of zeros stays."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1), np.float64)


def merged(rows: Floats, weights: Floats | Integers) -> Placed:
    """Equal rows as one that weighs as much as all of them."""
    first, place = distinct(rows)
    return Placed(rows[first], np.bincount(place, weights, len(first)).astype(np.float64))
