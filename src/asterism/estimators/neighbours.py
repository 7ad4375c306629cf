"""The graph of prototypes that resemble each other: each with its nearest by cosine."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from asterism.distances import Floats
from asterism.estimators.space import Placed, unit

BLOCK = 1 << 11  # rows whose cosines to all rows are held at a time


def neighbours(found: Placed, count: int) -> sparse.csr_array:
    """Symmetric weights (n, n) of each row and its ``count`` nearest: cosine times the root of both rows' weights.

    Rows at a right angle or further apart are not tied, however near they are to being the nearest.
    """
    rows = unit(found.rows).astype(np.float32)
    count = min(count, len(rows) - 1)
    parts = [_nearest(rows, start, count) for start in range(0, len(rows), BLOCK)]
    left, right, cosines = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = cosines > 0
    left, right, cosines = left[kept], right[kept], cosines[kept].astype(np.float64)
    values: Floats = cosines * np.sqrt(found.weights[left] * found.weights[right])
    graph = sparse.csr_array((values, (left, right)), shape=(len(rows), len(rows)))
    return graph.maximum(graph.T).tocsr()


def _nearest(rows: np.ndarray, start: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The block of rows from ``start``: pairs and their cosines, the row itself left out; of ties the first."""
    block = rows[start : start + BLOCK] @ rows.T
    own = np.arange(len(block))
    block[own, start + own] = -np.inf
    order = np.argsort(-block, axis=1, kind="stable")[:, :count]
    return (start + own).repeat(count), order.ravel(), np.take_along_axis(block, order, axis=1).ravel()
