from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from asterism.distances import Floats
from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.estimators.mixture import mixture
from tests.test_prototypes import separated

RNG = np.random.default_rng


def overlapping() -> tuple[Floats, Floats]:
    rng = RNG(4)
    points = 2 * rng.normal(size=(9, 12))[rng.integers(0, 9, 150)] + rng.normal(size=(150, 12))
    return points, 2 * rng.normal(size=(12, 12))


@pytest.mark.parametrize("scale", ["raw", "unit"])
def test_the_estimate_is_the_mean_of_both_choices(scale: str) -> None:
    points, known = overlapping()
    pool = Pool.of(points, known=known, seed=3)
    found = ESTIMATORS["emacs"].count(pool, settings_of("emacs", [f"scale={scale}"]))
    accuracy = ESTIMATORS["macc"].count(pool, settings_of("macc", [f"scale={scale}"])).search
    mixed = mixture(pool, known, scale, 10)  # type: ignore[arg-type]
    rows = mixed.rows[120:]
    expected = [
        silhouette_score(rows, partition.labels[120:])
        for partition in mixed.partitions(0, seed=3, restarts=3)
        if 1 < len(set(partition.labels[120:].tolist())) < len(rows)
    ]
    assert found.search is not None and accuracy is not None
    assert found.search.scores == pytest.approx(np.array(expected))
    choices = sorted([int(accuracy.scores.argmax()), int(np.argmax(expected))])
    assert found.search.near == (choices[0], choices[1])
    assert found.count == max(1, sum(choices) // 2)


def test_one_cluster_for_all_unlabelled_rows_has_the_worst_score() -> None:
    points, known = separated(1, 6, dimensions=8), 1e4 * np.eye(4, 8)
    found = ESTIMATORS["emacs"].count(Pool.of(points, known=known), settings_of("emacs", ["scale=raw"]))
    assert found.search is not None and found.search.scores[0] == -1
