from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.estimators.gap import uniform
from asterism.estimators.pool import Counted
from asterism.estimators.space import Placed
from tests.test_prototypes import separated

RNG = np.random.default_rng


def gap(points: np.ndarray, *assignments: str, seed: int = 0) -> Counted:
    return ESTIMATORS["gap"].count(Pool.of(points, seed=seed), settings_of("gap", assignments))


def test_references_fill_the_box_of_the_rows() -> None:
    rows = RNG(0).normal(size=(500, 3)) * [5, 1, 0.1]
    turned = rows @ np.linalg.qr(RNG(1).normal(size=(3, 3)))[0]
    (reference,) = uniform(Placed(turned, np.ones(500)), 1, RNG(2))
    assert reference.shape == rows.shape
    sides = np.ptp(reference, axis=0)
    assert sides == pytest.approx(np.ptp(rows, axis=0), rel=0.1)  # the box lies along the axes of the rows
    assert pdist(reference).mean() > pdist(rows).mean()


@pytest.mark.parametrize("dimensions", [2, 16, 128])
def test_rows_without_classes_are_one_by_the_published_rule(dimensions: int) -> None:
    assert gap(RNG(0).uniform(size=(300, dimensions)), "scale=raw", "rule=first").count == 1


def test_gap_of_a_number_is_the_mean_of_logarithms() -> None:
    points = separated(4, 6, dimensions=4)
    found = gap(points, "scale=raw", "most=2", "references=200").search
    assert found is not None and found.classes.tolist() == [1, 2]
    points /= np.abs(points).max()
    moved = points - points.mean(axis=0)
    own = (moved**2).sum()
    references = list(uniform(Placed(points, np.ones(24)), 400, RNG(0)))
    expected = np.mean([np.log(((rows - rows.mean(axis=0)) ** 2).sum()) for rows in references]) - np.log(own)
    assert found.scores[0] == pytest.approx(expected, abs=0.02)


def test_the_published_rule_stops_at_the_first_that_is_good_enough() -> None:
    points = separated(5, 8, dimensions=2, seed=2)
    first, whole = gap(points, "rule=first", "scale=raw"), gap(points, "scale=raw")
    assert first.search is not None and whole.search is not None
    assert first.search.classes[-1] == first.count + 1 < whole.search.classes[-1]


def test_repeated_rows_are_counted() -> None:
    assert gap(separated(3, 1).repeat(20, axis=0) + 0.0).count <= 3
    rows = np.concatenate([separated(3, 1).repeat(20, axis=0), separated(3, 1) + 1e-9])
    assert gap(rows).count == 3
