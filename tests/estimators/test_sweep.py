from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asterism.distances import Floats, Integers
from asterism.estimators.sweep import Partition, sweep
from tests.test_prototypes import clouds, separated

RNG = np.random.default_rng


def swept(rows: Floats, last: int, *, first: int = 1, weights: Floats | None = None) -> list[Partition]:
    weights = np.ones(len(rows)) if weights is None else weights
    return list(sweep(rows, weights, first, last, seed=7, restarts=3))


def squares(rows: Floats, weights: Floats, labels: Integers) -> float:
    """The weighted sum of squares within clusters, word for word."""
    total = 0.0
    for label in np.unique(labels):
        own = labels == label
        total += float((weights[own] * ((rows[own] - np.average(rows[own], 0, weights[own])) ** 2).sum(1)).sum())
    return total


@settings(max_examples=40, deadline=None)
@given(rows=clouds(), seed=st.integers(0, 10**6))
def test_every_number_of_clusters_is_filled_and_inertia_is_what_it_says(rows: Floats, seed: int) -> None:
    weights = RNG(seed).integers(1, 9, len(rows)).astype(float)
    distinct = len(np.unique(rows, axis=0))
    found = swept(rows, len(rows), weights=weights)
    assert [partition.clusters for partition in found] == list(range(1, len(found) + 1))
    assert len(found) == distinct
    spread = np.ptp(rows)
    for partition in found:
        assert set(partition.labels.tolist()) == set(range(partition.clusters))
        expected = squares(rows, weights, partition.labels)
        assert partition.inertia == pytest.approx(expected, rel=2e-2, abs=1e-9 * spread**2 * weights.sum())


def test_equal_rows_are_dealt_alike() -> None:
    rows = separated(4, 3).repeat(3, axis=0)
    for partition in swept(rows, 6):
        assert np.array_equal(partition.labels[::3].repeat(3), partition.labels)


def test_separated_groups_are_found_at_their_number() -> None:
    found = swept(separated(9, 6), 9, first=9)
    assert np.array_equal(found[0].labels[::6].repeat(6), found[0].labels)
    assert len(set(found[0].labels.tolist())) == 9


def test_partitions_are_as_tight_as_those_of_separate_fits() -> None:
    rows = 1.5 * RNG(0).normal(size=(12, 8))[RNG(1).integers(0, 12, 400)] + RNG(2).normal(size=(400, 8))
    with threadpool_limits(1):
        for partition in swept(rows, 30, first=10)[::5]:
            fitted = KMeans(partition.clusters, n_init=3, random_state=0).fit(rows)
            assert squares(rows, np.ones(400), partition.labels) <= 1.03 * fitted.inertia_


def test_weights_are_repetitions() -> None:
    rows, times = separated(5, 4), RNG(0).integers(1, 5, 20)
    for one, other in zip(
        swept(rows, 8, weights=times.astype(float)), swept(rows.repeat(times, axis=0), 8), strict=True
    ):
        assert np.array_equal(one.labels.repeat(times), other.labels)


def test_no_rows_and_no_numbers_give_nothing() -> None:
    assert swept(np.empty((0, 3)), 4) == swept(np.eye(3), 5, first=4) == []
