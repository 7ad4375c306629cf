from __future__ import annotations

import numpy as np
import pytest

from asterism.distances import Floats
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.estimators.mixture import DEVIATION, augmented, mixture
from asterism.estimators.pool import Counted
from tests.test_estimators import crowded
from tests.test_prototypes import separated

RNG = np.random.default_rng


def macc(points: Floats, known: Floats, *assignments: str, seed: int = 0) -> Counted:
    return ESTIMATORS["macc"].count(Pool.of(points, known=known, seed=seed), settings_of("macc", assignments))


def test_augmented_rows_are_equation_12() -> None:
    prototypes = 5 * RNG(0).normal(size=(6, 2000))
    rows = augmented(prototypes, 40, 3.0, seed=1).reshape(6, 40, 2000)
    noise = (rows - prototypes[:, None]) / 3.0
    assert pytest.approx(0.01) == DEVIATION**2
    assert noise.var() == pytest.approx(0.01, rel=0.01) and abs(noise.mean()) < 1e-3
    assert len(np.unique(noise.reshape(240, -1), axis=0)) == 240


def test_labelled_rows_scatter_by_the_smallest_distance_of_distinct_prototypes() -> None:
    points = np.concatenate([100 * np.eye(3), 100 * np.eye(3), [[102.0, 0, 0]]])
    known = np.eye(4, 3) + 1
    mixed = mixture(Pool.of(points, known=known), known, "raw", copies=500)
    scatter = mixed.rows[:2000] - known.repeat(500, axis=0)
    assert scatter.std() == pytest.approx(DEVIATION * 2, rel=0.05)
    assert np.array_equal(mixed.labels, np.arange(4).repeat(500))
    assert mixed.weights[2000:].sum() == 7 and len(mixed.rows) == 2004


def test_rows_of_unit_norm_are_scattered_after_they_are_scaled() -> None:
    points, known = separated(3, 5), 1e-6 * RNG(0).normal(size=(4, 16))
    mixed = mixture(Pool.of(points, known=known), known, "unit", copies=5)
    assert np.linalg.norm(mixed.rows[20:], axis=1) == pytest.approx(np.ones(15))
    assert np.abs(np.linalg.norm(mixed.rows[:20], axis=1) - 1).max() < 0.5


def test_accuracy_matches_clusters_to_classes_one_to_one() -> None:
    known = np.eye(3)
    mixed = mixture(Pool.of(np.array([[9.0, 0, 0], [0, 9, 9]]), known=known), known, "raw", copies=2)
    assert mixed.accuracy(np.array([4, 4, 0, 0, 1, 1, 4, 4])) == 100
    assert mixed.accuracy(np.array([4, 4, 0, 0, 0, 0, 1, 2])) == pytest.approx(100 * 4 / 6)
    assert mixed.accuracy(np.array([0, 1, 0, 1, 0, 1, 2, 2])) == pytest.approx(100 * 2 / 6)


@pytest.mark.parametrize("scale", ["raw", "unit"])
def test_the_first_number_that_tells_all_known_classes_apart_is_chosen(scale: str) -> None:
    points = separated(6, 4, dimensions=64)
    known = crowded(points)
    found = macc(points, known, f"scale={scale}")
    assert found.count == 6
    assert found.search is not None and found.search.scores[6] == 100
    assert found.search.classes.tolist() == list(range(9))  # K from C^L = 8 to 2·C^L
    assert found.search.scores[:6].max() < 100


def test_ties_go_to_the_smallest_and_none_is_one() -> None:
    points, known = separated(3, 6, dimensions=64), 100 * np.eye(5, 64)
    found = macc(points, known, "scale=raw")  # known classes are far from everything: C^L clusters tell them apart
    assert found.search is not None and found.search.scores[0] == found.search.scores.max()
    assert found.count == 1


def test_settings_reach_the_search() -> None:
    points, known = separated(6, 4, dimensions=64), RNG(0).normal(size=(5, 64))
    found = macc(points, known, "most=17", "copies=3", "restarts=1")
    assert found.search is not None and found.search.classes.tolist() == list(range(13))


def test_the_seed_draws_the_noise() -> None:
    points, known = RNG(0).normal(size=(80, 8)), RNG(1).normal(size=(10, 8))
    scores = [macc(points, known, seed=seed).search for seed in (1, 1, 2)]
    assert all(search is not None for search in scores)
    first, again, other = (search.scores.tolist() for search in scores if search is not None)
    assert first == again != other


def test_known_prototypes_that_all_repeat_are_refused() -> None:
    points = np.array([[1.0, 0], [1.0, 1e-300]])
    with pytest.raises(AsterismError, match="cannot be told apart"):
        macc(points, np.ones((4, 2)), "scale=raw")
