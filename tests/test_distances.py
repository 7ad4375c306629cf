from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist, squareform

from asterism.distances import Floats, bounded, closest, farthest, square


def cloud(seed: int, count: int, dimensions: int, spread: float) -> Floats:
    """Groups whose centres lie ``spread`` times as far apart as their points, away from the origin, one far off."""
    rng = np.random.default_rng(seed)
    centres = 5 + spread * rng.normal(size=(4, dimensions))
    points = centres[rng.integers(0, 4, count)] + rng.normal(size=(count, dimensions))
    points[0] *= 1 + spread**2
    return points


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(2, 60),
    dimensions=st.integers(1, 40),
    spread=st.sampled_from([0.0, 1.0, 100.0, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_bounds_enclose_every_distance(
    seed: int, count: int, dimensions: int, spread: float, dtype: torch.dtype
) -> None:
    points = cloud(seed, count, dimensions, spread)
    bounds, everyone = bounded(points, dtype), np.arange(count)
    squares = np.empty((count, count))
    for part, panel in bounds.panels(everyone):
        squares[part] = panel.double().numpy() + bounds.own(part)[:, None]
    exact = cdist(points, points)
    assert (bounds.length(squares) <= exact).all()
    upper = bounds.utmost(squares + bounds.excess(everyone) + bounds.excess(everyone)[:, None])
    unclipped = ~bounds.clipped
    assert (upper >= exact)[np.ix_(unclipped, unclipped)].all()


def test_single_precision_is_tight_on_ordinary_points() -> None:
    points = np.random.default_rng(0).normal(size=(50, 512))
    bounds = bounded(points, torch.float32)
    ((part, panel),) = bounds.panels(np.arange(50))
    lower = bounds.length(panel.double().numpy() + bounds.own(part)[:, None])
    exact = cdist(points, points)
    off = ~np.eye(50, dtype=bool)
    assert (lower[off] > 0.9999 * exact[off]).all()


def test_panels_keep_full_precision_whatever_torch_was_told() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        bounds = bounded(cloud(0, 20, 8, 1.0), torch.float32)
        assert len(list(bounds.panels(np.arange(20)))) == 1
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_table_equals_scipy_bit_for_bit() -> None:
    points = cloud(3, 300, 17, 2.0).astype(np.float32)
    assert (square(points) == squareform(pdist(points))).all()


@pytest.mark.parametrize("chunk", [7, 4096])
def test_distances_of_groups_are_exact(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("asterism.distances.CHUNK", chunk)
    points = cloud(1, 60, 5, 3.0)
    left, right = np.arange(0, 25), np.arange(25, 60)
    table = cdist(points[left], points[right])
    length, i, j = closest(points, left, right)
    assert (length, farthest(points, left, right)) == (table.min(), table.max())
    assert table[i, j - 25] == length
