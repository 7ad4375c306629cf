from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from asterism.distances import Floats, square
from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.estimators.silhouette import silhouette_of
from tests.test_prototypes import clouds, separated

RNG = np.random.default_rng


@settings(deadline=None)
@given(rows=clouds(), clusters=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_silhouette_is_scikit_learns(rows: Floats, clusters: int, seed: int) -> None:
    labels = RNG(seed).integers(0, clusters, len(rows))
    if not 1 < len(set(labels.tolist())) < len(rows):
        return
    # Rounding decides what the reference says of rows at no distance at all; leave them to the next test.
    if len(np.unique(rows, axis=0)) < len(rows):
        return
    expected = silhouette_score(square(rows), labels, metric="precomputed")
    assert silhouette_of(square(rows), np.ones(len(rows)), labels) == pytest.approx(expected, abs=1e-9)


def test_rows_at_no_distance_are_perfectly_placed() -> None:
    rows = np.eye(3).repeat(4, axis=0)
    assert silhouette_of(square(rows), np.ones(12), np.arange(3).repeat(4)) == 1
    assert silhouette_of(square(np.ones((4, 2))), np.ones(4), np.array([0, 0, 1, 1])) == 0


def test_a_row_alone_counts_nothing_however_heavy() -> None:
    distances = square(np.array([[0.0], [1.0], [9.0]]))
    light = silhouette_of(distances, np.array([1.0, 1, 1]), np.array([0, 0, 1]))
    heavy = silhouette_of(distances, np.array([1.0, 1, 8]), np.array([0, 0, 1]))
    assert (light, heavy) == pytest.approx(((8 / 9 + 7 / 8) / 3, (8 / 9 + 7 / 8) / 10))


def test_heavy_neighbours_count_more() -> None:
    distances = square(np.array([[0.0], [2.0], [10.0], [20.0]]))
    found = silhouette_of(distances, np.array([1.0, 1, 3, 1]), np.array([0, 0, 1, 1]))
    near = [(1 * 10 * 3 + 20) / 4, (8 * 3 + 18) / 4]  # to the other cluster, from 0 and from 2
    expected = [1 - 2 / near[0], 1 - 2 / near[1], (9 - 10) / 10, (19 - 10) / 19]
    assert found == pytest.approx(np.average(expected, weights=[1, 1, 3, 1]))


@pytest.mark.parametrize("scale", ["raw", "unit", "centred"])
def test_separated_groups_are_counted_at_every_scale(scale: str) -> None:
    points = separated(8, 5, dimensions=64)
    found = ESTIMATORS["silhouette"].count(Pool.of(points), settings_of("silhouette", [f"scale={scale}"]))
    assert found.count == 8
    assert found.search is not None and found.search.near == (8, 8)


def test_sizes_weigh_and_need_not() -> None:
    points, sizes = RNG(0).normal(size=(60, 6)), RNG(1).integers(1, 50, 60)
    weighted, plain, equal = (
        ESTIMATORS["silhouette"].count(Pool.of(points, given), settings_of("silhouette", assignments)).search
        for given, assignments in ((sizes, []), (sizes, ["weighted=false"]), (None, []))
    )
    assert weighted is not None and plain is not None and equal is not None
    assert np.array_equal(plain.scores, equal.scores)
    assert not np.array_equal(weighted.scores, equal.scores)
