from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform

from asterism import forest
from asterism.distances import Floats, Points
from asterism.spanning import DENSE, Tree, distinct, survey, tree

RNG = np.random.default_rng


def blobs(count: int, groups: int, *, width: float, dimensions: int = 24, seed: int = 0) -> Floats:
    rng = RNG(seed)
    centres = rng.normal(size=(groups, dimensions))
    return centres[rng.integers(0, groups, count)] + width * rng.normal(size=(count, dimensions))


def two_far_blobs() -> Floats:
    points = RNG(1).normal(size=(900, 12))
    points[400:] += 1e4
    return points


def with_outliers() -> Floats:
    points = RNG(2).normal(size=(800, 12))
    points[5] = 1e20
    points[20:80] = -1e12 * (1 + 1e-9 * points[20:80])
    return points


def repeated() -> Floats:
    return RNG(3).normal(size=(40, 6)).repeat(20, axis=0)[RNG(4).permutation(800)]


POOLS: dict[str, Callable[[], Points]] = {
    "noise": lambda: RNG(0).normal(size=(1000, 32)),
    "float32": lambda: RNG(0).normal(size=(700, 32)).astype(np.float32),
    "plane": lambda: RNG(0).normal(size=(1000, 2)),
    "line": lambda: np.arange(600.0)[:, None] ** 3,
    "lattice": lambda: RNG(0).integers(0, 12, size=(900, 3)).astype(float),
    "groups larger than the candidates": lambda: blobs(1000, 8, width=0.1),
    "two far blobs": two_far_blobs,
    "tight blobs": lambda: blobs(900, 12, width=1e-5),
    "blobs below single precision": lambda: blobs(600, 6, width=1e-9) + 100,
    "blobs at the last bit": lambda: blobs(300, 5, width=1e-15) + 1,
    "heavy tails": lambda: RNG(0).standard_cauchy(size=(900, 8)),
    "many scales": lambda: np.exp(8 * RNG(0).normal(size=(700, 4))),
    "outliers": with_outliers,
    "duplicates": repeated,
    "all equal": lambda: np.ones((300, 4)),
}


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees agree in all that equal distances leave no choice in, bit for bit."""
    values = (a.smallest, a.largest) == (b.smallest, b.largest)
    return values and np.array_equal(a.lengths, b.lengths) and np.array_equal(a.nearest, b.nearest)


def spans(found: Tree) -> bool:
    """Whether the edges join all points without a cycle."""
    label = np.arange(len(found))
    for i, j in found.edges:
        if label[i] == label[j]:
            return False
        label[label == label[i]] = label[j]
    return len(set(label.tolist())) == min(1, len(found))


@pytest.mark.parametrize("name", POOLS)
def test_large_path_equals_dense_path(name: str) -> None:
    points = POOLS[name]()
    dense, large = tree(points, dense=len(points)), tree(points, dense=0)
    assert same(dense, large)
    assert spans(large)
    ends = points.astype(np.float64)[large.edges]
    assert np.allclose(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1), large.lengths, rtol=1e-9, atol=0)


@settings(deadline=None, max_examples=60)
@given(
    cells=st.lists(st.tuples(st.integers(-6, 6), st.integers(-6, 6), st.integers(-1, 1)), max_size=90),
    scale=st.sampled_from([1.0, 1e-9, 1e9]),
)
def test_both_paths_equal_single_linkage(cells: list[tuple[int, int, int]], scale: float) -> None:
    points = scale * np.array(cells, np.float64).reshape(-1, 3)
    dense, large = tree(points), tree(points, dense=0)
    assert same(dense, large)
    assert spans(dense) and spans(large)
    if len(points) > 1:
        distances = pdist(points)
        square = squareform(distances)
        np.fill_diagonal(square, np.inf)
        assert np.array_equal(dense.lengths, linkage(distances, "single")[:, 2])
        assert np.array_equal(dense.nearest, square.min(axis=1))
        assert (dense.smallest, dense.largest) == (distances.min(), distances.max())


@pytest.mark.parametrize("dense", [0, DENSE])
@pytest.mark.parametrize("points", [0, 1, 2])
def test_smallest_pools_have_a_tree(points: int, dense: int) -> None:
    found = tree(np.arange(3.0 * points).reshape(points, 3), dense=dense)
    assert (found.edges.shape, found.lengths.shape) == ((max(0, points - 1), 2), (max(0, points - 1),))
    apart = 27**0.5 if points == 2 else 0.0
    assert (found.smallest, found.largest) == (apart, apart)
    assert found.nearest.tolist() == [apart if points == 2 else np.inf] * points


@pytest.mark.parametrize("name", ["noise", "two far blobs", "lattice", "duplicates", "outliers"])
def test_order_of_the_points_changes_nothing(name: str) -> None:
    points = POOLS[name]()
    order = RNG(9).permutation(len(points))
    for dense in (0, len(points)):
        found, again = tree(points, dense=dense), tree(points[order], dense=dense)
        assert np.array_equal(found.lengths, again.lengths)
        assert np.array_equal(found.nearest[order], again.nearest)
        assert found.largest == again.largest


@pytest.mark.parametrize("name", ["noise", "two far blobs", "duplicates", "tight blobs", "outliers"])
def test_tree_of_a_part_equals_the_tree_of_those_points(name: str) -> None:
    points = POOLS[name]()
    for dense in (0, len(points)):
        looked = survey(points, dense=dense)
        for seed in range(3):
            keep = RNG(seed).random(len(points)) < (0.9, 0.3, 0.01)[seed]
            assert same(looked.tree(keep), tree(points[keep], dense=len(points)))
        assert looked.tree(np.zeros(len(points), np.bool_)).lengths.tolist() == []


def test_far_groups_are_bridged_and_not_searched_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("searched point by point")

    points = blobs(1000, 8, width=0.1)
    expected = tree(points)
    monkeypatch.setattr(forest, "_point_by_point", fail)
    assert same(tree(points, dense=0), expected)


def test_too_many_groups_are_joined_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "MOST_GROUPS", 3)
    points = blobs(1000, 8, width=0.1)
    assert same(tree(points, dense=0), tree(points))


def test_points_are_left_as_they_are() -> None:
    points = POOLS["noise"]()
    before = points.copy()
    tree(points, dense=0)
    tree(points)
    assert np.array_equal(points, before)


def test_distinct_rows_are_found_in_an_order_of_their_own() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0], [2.0, 0.0]])
    first, place = distinct(rows)
    assert sorted(first.tolist()) == [0, 1]
    assert np.array_equal(rows[first][place], rows)
    again, _ = distinct(rows[::-1])
    assert np.array_equal(rows[::-1][again], rows[first])
