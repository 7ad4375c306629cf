"""What every estimator of the dictionary must do, whatever its method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.distances import Floats, Points
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS, AnyEstimator, Counted, Pool, Ppm, PpmExact, settings_of
from asterism.prototypes import ppm, ppm_exact
from asterism.spanning import tree
from tests.test_prototypes import clouds, separated

RNG = np.random.default_rng
SEARCHING = ["macc", "emacs", "silhouette", "gap", "eigengap"]


def crowded(points: Points) -> Floats:
    """Eight known prototypes far from the points, in pairs: too few clusters merge two of them before anything else."""
    pairs = separated(4, 2, seed=1, dimensions=points.shape[1])
    pairs[::2] += 2
    return pairs


def counted(name: str, points: Points, **given: object) -> Counted:
    estimator = ESTIMATORS[name]
    pool = replace(Pool.of(points, known=np.eye(3, points.shape[1])), **given)  # type: ignore[arg-type]
    return estimator.count(pool, estimator.params())


# The stand-in halves two answers, see tests/estimators/test_emacs.py.
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "emacs"])
@pytest.mark.parametrize("classes", [7, 3])
def test_every_estimator_counts_separated_groups_and_leaves_the_pool_alone(name: str, classes: int) -> None:
    points = separated(classes, 3, dimensions=64)
    before = points.copy()
    found = counted(name, points, known=crowded(points))
    assert found.count == classes
    assert found.curve is None or found.curve.counts.max() == classes
    assert np.array_equal(points, before)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    "points",
    [np.empty((0, 4)), np.ones((1, 4)), np.ones((5, 4)), np.zeros((3, 4)), np.eye(2, 4)],
    ids=["none", "one", "repeated", "zeros", "two"],
)
def test_every_estimator_answers_for_the_smallest_pools(name: str, points: Points) -> None:
    assert counted(name, points).count == min(1, len(points))


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=15, deadline=None)
@given(points=clouds(), seed=st.integers(0, 10**6))
def test_every_estimate_lies_within_the_pool_and_no_order_changes_it(name: str, points: Floats, seed: int) -> None:
    sizes = RNG(seed).integers(1, 9, len(points))
    order = RNG(seed).permutation(len(points))
    found = counted(name, points, sizes=sizes, seed=seed)
    again = counted(name, points[order], sizes=sizes[order], seed=seed, grow=lambda: tree(points[order]))
    assert 1 <= found.count <= len(points)
    assert found.count == again.count
    if found.search is not None and again.search is not None:
        assert np.array_equal(found.search.classes, again.search.classes)
        assert np.array_equal(found.search.scores, again.search.scores)
        assert np.isfinite(found.search.scores).all()
        assert found.search.near[0] <= found.search.near[1]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_repeats_by_its_seed(name: str) -> None:
    points = RNG(3).normal(size=(60, 12)).astype(np.float32)
    first, second = counted(name, points, seed=5), counted(name, points, seed=5)
    assert first.count == second.count
    if first.search is not None and second.search is not None:
        assert np.array_equal(first.search.scores, second.search.scores)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_number_of_threads_changes_an_estimate(name: str) -> None:
    points = RNG(3).normal(size=(300, 64)).astype(np.float32)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(counted(name, points, known=RNG(4).normal(size=(30, 64))))
    assert found[0].count == found[1].count
    if found[0].search is not None and found[1].search is not None:
        assert np.array_equal(found[0].search.scores, found[1].search.scores)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_bears_numbers_of_any_size(name: str) -> None:
    points = separated(4, 5, dimensions=8)
    for scale in (1e-120, 1e120):
        found = counted(name, points * scale, known=np.eye(3, 8) * scale)
        assert found.count == counted(name, points, known=np.eye(3, 8)).count


@pytest.mark.parametrize("name", SEARCHING)
def test_those_that_weigh_candidates_show_them(name: str) -> None:
    search = counted(name, separated(4, 5, dimensions=8)).search
    assert search is not None and len(search.classes) == len(search.scores) > 1
    assert np.all(np.diff(search.classes) == 1)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if ESTIMATORS[name].needs_known])
def test_a_method_that_needs_known_prototypes_says_so(name: str) -> None:
    points, estimator = separated(3, 4), ESTIMATORS[name]
    with pytest.raises(AsterismError, match=f"{name} needs prototypes of known classes, and there are none"):
        estimator.count(Pool.of(points), estimator.params())
    with pytest.raises(AsterismError, match="known prototypes have 3 columns, features 16"):
        estimator.count(Pool.of(points, known=np.eye(3)), estimator.params())
    with pytest.raises(AsterismError, match="most = 2 clusters are fewer than the 3 known classes"):
        estimator.count(Pool.of(points, known=np.eye(3, 16)), settings_of(name, ["most=2"]))


def test_others_need_none() -> None:
    needy = {name for name in ESTIMATORS if ESTIMATORS[name].needs_known}
    for name in set(ESTIMATORS) - needy:
        assert counted(name, separated(3, 4), known=None).count >= 1
    assert needy == {"macc", "emacs"}


def test_a_configuration_may_name_every_estimator() -> None:
    union: TypeAdapter[AnyEstimator] = TypeAdapter(AnyEstimator)
    for name, estimator in ESTIMATORS.items():
        assert union.validate_python({"name": name}) == estimator.params() == settings_of(name)


def test_the_stand_in_is_called_one() -> None:
    assert ESTIMATORS["emacs"].about.startswith("stand-in: EMaCS is not published under this name")


def test_methods_are_the_ones_of_their_names() -> None:
    points = np.concatenate([separated(9, 6), np.full((1, 16), 1e5)])
    pool = Pool.of(points)
    assert ESTIMATORS["ppm"].count(pool, Ppm()).count == ppm(tree(points)) == 1
    assert ESTIMATORS["ppm-exact"].count(pool, PpmExact()).count == ppm_exact(tree(points)) > 1
    fine = ESTIMATORS["ppm"].count(pool, Ppm(steps=200))
    assert fine.curve is not None and len(fine.curve.radius) == 201


def test_tree_of_a_pool_is_grown_once() -> None:
    grown = []

    def grow() -> object:
        grown.append(1)
        return tree(np.eye(3))

    pool = Pool(np.eye(3), np.ones(3, np.int64), grow)  # type: ignore[arg-type]
    ESTIMATORS["ppm"].count(pool, Ppm())
    ESTIMATORS["ppm-exact"].count(pool, PpmExact())
    assert grown == [1]


def test_a_grid_needs_a_step() -> None:
    with pytest.raises(ValidationError, match="steps"):
        Ppm(steps=0)
