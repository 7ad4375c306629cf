from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import DBSCAN, KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.distances import Floats, Integers
from asterism.errors import AsterismError
from asterism.prototypes import (
    density_counts,
    exact_curve,
    global_prototypes,
    lloyd_step,
    local_prototypes,
    moved,
    paper_grid,
    ppm,
    ppm_exact,
)
from asterism.spanning import tree

RNG = np.random.default_rng


def dbscan(pool: Floats, radii: Floats) -> Integers:
    """The paper's procedure, word for word: clusters of DBSCAN at each radius, noise not counted."""
    distances = squareform(pdist(pool))
    found = []
    for radius in radii:
        # scikit-learn refuses a radius of 0; the smallest number above it reaches the same points.
        eps = max(float(radius), np.nextafter(0.0, 1.0))
        labels = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit_predict(distances)
        found.append(len(set(labels.tolist()) - {-1}))
    return np.array(found)


def clouds() -> st.SearchStrategy[Floats]:
    """Pools with duplicates and ties (few integers), and pools in general position with an outlier or without."""
    integers = st.tuples(st.integers(2, 40), st.integers(1, 4)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.integers(-3, 3).map(float))
    )
    return integers | st.builds(drawn, st.integers(2, 60), st.integers(1, 40), st.integers(0, 10**6), st.booleans())


def drawn(count: int, dimensions: int, seed: int, outlier: bool) -> Floats:
    rng = RNG(seed)
    pool = 2 * rng.normal(size=(5, dimensions))[rng.integers(0, 5, count)] + rng.normal(size=(count, dimensions))
    pool[0] *= 1000 if outlier else 1
    return pool


def separated(classes: int, each: int, *, seed: int = 0, dimensions: int = 16) -> Floats:
    rng = RNG(seed)
    centres = 10 * rng.normal(size=(classes, dimensions))
    return centres.repeat(each, axis=0) + rng.normal(size=(classes * each, dimensions))


@settings(deadline=None, max_examples=40)
@given(pool=clouds())
def test_grid_equals_dbscan_at_every_radius(pool: Floats) -> None:
    radius, counts = paper_grid(tree(pool))
    distances = pdist(pool)
    expected = [distances.min() + e / 50 * (distances.max() - distances.min()) for e in range(51)]
    assert len(radius) == 51 and np.allclose(radius, expected, rtol=1e-12)
    assert counts.tolist() == dbscan(pool, radius).tolist()


@settings(deadline=None, max_examples=15)
@given(pool=clouds())
def test_exact_curve_equals_dbscan_wherever_a_distance_lies(pool: Floats) -> None:
    found = tree(pool)
    radius, counts = exact_curve(found)
    assert (np.diff(radius) > 0).all() and (np.diff(counts, prepend=0) != 0).all()
    everywhere = np.unique(pdist(pool))
    expected = dbscan(pool, everywhere)
    assert density_counts(found, everywhere).tolist() == expected.tolist()
    standing = np.searchsorted(radius, everywhere, side="right")
    assert np.append(0, counts)[standing].tolist() == expected.tolist()
    assert ppm_exact(found) == max(1, expected.max()) >= ppm(found)


def test_large_path_gives_the_grid_of_dbscan_too() -> None:
    pool = separated(12, 8)
    radius, counts = paper_grid(tree(pool, dense=0))
    assert counts.tolist() == dbscan(pool, radius).tolist()


def test_order_of_the_pool_changes_no_count() -> None:
    pool = separated(10, 6)
    again = pool[RNG(1).permutation(len(pool))]
    for a, b in zip(paper_grid(tree(pool)), paper_grid(tree(again)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("pool", "estimate"),
    [
        (np.empty((0, 3)), 0),
        (np.zeros((1, 3)), 1),
        (np.zeros((2, 3)), 1),
        (np.eye(2), 1),
        (np.ones((9, 3)), 1),
        (np.array([[0.0], [1.0], [10.0], [11.0]]), 2),
    ],
)
def test_smallest_pools_have_an_estimate(pool: Floats, estimate: int) -> None:
    assert (ppm(tree(pool)), ppm_exact(tree(pool))) == (estimate, estimate)


def test_one_outlier_takes_the_grid_but_not_the_exact_maximum() -> None:
    pool = separated(12, 6)
    far = np.concatenate([pool, np.full((1, 16), 1e6)])
    assert (ppm(tree(pool)), ppm(tree(far))) == (12, 1)
    assert ppm_exact(tree(far)) == ppm_exact(tree(pool)) >= 12


def test_finer_grid_finds_what_the_papers_grid_misses() -> None:
    found = tree(np.concatenate([separated(12, 6), np.full((1, 16), 1e4)]))
    assert ppm(found) < ppm(found, steps=5000) <= ppm_exact(found)


def test_local_prototypes_are_means_of_what_they_stand_for() -> None:
    z = separated(4, 25)
    found = local_prototypes(z, 4, seed=1)
    means = z.reshape(4, 25, -1).mean(axis=1)
    assert found.centres.dtype == np.float32 and found.sizes.tolist() == [25] * 4 and found.withheld == 0
    order = [int(np.linalg.norm(means - centre, axis=1).argmin()) for centre in found.centres]
    assert sorted(order) == [0, 1, 2, 3]
    assert np.allclose(found.centres, means[order], atol=1e-5)


@pytest.mark.parametrize(
    ("z", "kept"),
    [
        (np.empty((0, 5)), 0),
        (np.ones((1, 5)), 1),
        (np.ones((30, 5)), 1),
        (np.array([[0.0], [-0.0], [1.0]]), 2),
        (np.eye(3).repeat(10, axis=0), 3),
        (1e8 + RNG(0).random((30, 2)) * 1e-7, 8),
        (RNG(0).random((200, 3)), 8),
    ],
)
def test_any_site_has_prototypes(z: Floats, kept: int) -> None:
    found = local_prototypes(z, 8, seed=0)
    assert found.centres.shape == (len(found.sizes), z.shape[1])
    assert 0 < len(found.sizes) <= kept or len(z) == kept == 0
    assert found.sizes.sum() == len(z)
    assert np.isfinite(found.centres).all() and (found.sizes > 0).all()


def test_clusters_below_the_floor_are_withheld_and_counted() -> None:
    z = np.array([[0.0]] * 5 + [[10.0]] * 3 + [[20.0]])
    found = local_prototypes(z, 8, seed=0, floor=3)
    assert (sorted(found.centres.ravel().tolist()), found.withheld) == ([0.0, 10.0], 1)
    assert local_prototypes(z, 8, seed=0, floor=6).withheld == 3


@pytest.mark.parametrize("seed", [0, 1])
def test_prototypes_do_not_depend_on_threads_or_order(seed: int) -> None:
    z = RNG(seed).normal(size=(3000, 20)).astype(np.float32)
    with threadpool_limits(1):
        one = local_prototypes(z, 40, seed=seed)
    with threadpool_limits(2):
        two = local_prototypes(z, 40, seed=seed)
    other = local_prototypes(z[RNG(5).permutation(len(z))], 40, seed=seed)
    for found in (two, other):
        assert np.array_equal(one.centres, found.centres) and np.array_equal(one.sizes, found.sizes)
    assert not np.array_equal(one.centres, local_prototypes(z, 40, seed=seed + 10).centres)


def test_global_prototypes_find_the_groups_of_the_pool_in_any_order() -> None:
    pool = separated(9, 7)
    found = global_prototypes(pool, 9, seed=3)
    means = pool.reshape(9, 7, -1).mean(axis=1)
    assert found.shape == (9, 16) and found.dtype == np.float32
    assert np.linalg.norm(found[:, None] - means, axis=2).min(axis=0).max() < 1e-4
    order = RNG(0).permutation(len(pool))
    weights = RNG(1).random(len(pool))
    assert np.array_equal(found, global_prototypes(pool[order], 9, seed=3))
    weighted = global_prototypes(pool, 9, seed=3, weights=weights)
    assert np.array_equal(weighted, global_prototypes(pool[order], 9, seed=3, weights=weights[order]))


def test_weights_count_like_repetitions() -> None:
    pool, weights = np.array([[0.0], [1.0], [10.0], [14.0]]), np.array([3, 1, 1, 3])
    weighted = global_prototypes(pool, 2, seed=0, weights=weights)
    assert sorted(weighted.ravel().tolist()) == [0.25, 13.0]
    assert np.array_equal(weighted, global_prototypes(pool.repeat(weights, axis=0), 2, seed=0))


def test_more_prototypes_than_distinct_rows_are_refused() -> None:
    with pytest.raises(AsterismError, match="3 global prototypes are asked of 2 distinct local ones"):
        global_prototypes(np.array([[0.0], [1.0], [1.0]]), 3, seed=0)


def test_federated_rounds_equal_central_k_means() -> None:
    z = separated(6, 60, seed=4) / 3
    sites = np.array_split(z[RNG(0).permutation(len(z))], [10, 10, 150])
    start = z[RNG(1).choice(len(z), 6, replace=False)]
    centres = start
    for _ in range(10):
        steps = [lloyd_step(site, centres) for site in sites]
        centres = moved(sum(s for s, _ in steps), sum(c for _, c in steps), centres)  # type: ignore[arg-type]
    central = KMeans(6, init=start, n_init=1, max_iter=10, tol=0).fit(z)
    assert np.abs(centres - central.cluster_centers_).max() < 1e-5
    assert not np.allclose(centres, start, atol=0.1)


def test_centre_that_nobody_is_near_stays() -> None:
    centres = np.array([[0.0, 0.0], [100.0, 100.0]], np.float32)
    sums, counts = lloyd_step(np.array([[1.0, 0.0], [3.0, 2.0]]), centres)
    assert (sums.tolist(), counts.tolist()) == ([[4, 2], [0, 0]], [2, 0])
    assert moved(sums, counts, centres).tolist() == [[2, 1], [100, 100]]
    nothing = lloyd_step(np.empty((0, 2)), centres)
    assert np.array_equal(moved(*nothing, centres), centres)


def test_step_is_exact_far_from_the_origin() -> None:
    z = np.array([[0.0], [1.0], [2.0], [3.0]]) + 1e9
    _, counts = lloyd_step(z, np.array([[0.4], [2.1]]) + 1e9)
    assert counts.tolist() == [2, 2]
