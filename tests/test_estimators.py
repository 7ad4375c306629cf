from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from asterism.distances import Points
from asterism.estimators import ESTIMATORS, Pool, Ppm, PpmExact
from asterism.prototypes import ppm, ppm_exact
from asterism.spanning import tree
from tests.test_prototypes import separated


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_counts_separated_groups_and_leaves_the_pool_alone(name: str) -> None:
    points = separated(7, 3, dimensions=64)
    before = points.copy()
    estimator = ESTIMATORS[name]
    settings = estimator.params()
    assert settings.model_dump()["name"] == name
    found = estimator.count(Pool.of(points), settings)
    assert found.count == 7
    assert found.curve is None or found.curve.counts.max() == 7
    assert np.array_equal(points, before)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("points", [np.empty((0, 4)), np.ones((1, 4)), np.ones((5, 4))])
def test_every_estimator_answers_for_the_smallest_pools(name: str, points: Points) -> None:
    estimator = ESTIMATORS[name]
    assert estimator.count(Pool.of(points), estimator.params()).count == min(1, len(points))


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
