"""The graph of neighbours and the two estimators that read it."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from scipy.linalg import block_diag
from sklearn.metrics.pairwise import cosine_similarity

from asterism.estimators import ESTIMATORS, Pool, settings_of
from asterism.estimators import neighbours as module
from asterism.estimators.eigengap import spectrum
from asterism.estimators.neighbours import neighbours
from asterism.estimators.space import Placed, placed
from tests.test_prototypes import separated

RNG = np.random.default_rng


@pytest.mark.parametrize("block", [7, 64])
def test_neighbours_are_the_nearest_by_cosine(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    rows, weights = RNG(0).normal(size=(40, 5)), RNG(1).integers(1, 9, 40).astype(float)
    cosines = cosine_similarity(rows)
    np.fill_diagonal(cosines, -2)
    expected = np.zeros((40, 40))
    for i in range(40):
        for j in np.argsort(-cosines[i])[:4]:
            expected[i, j] = expected[j, i] = max(0, cosines[i, j]) * np.sqrt(weights[i] * weights[j])
    assert neighbours(Placed(rows, weights), 4).toarray() == pytest.approx(expected, abs=1e-5)


def test_no_row_is_tied_to_what_lies_at_a_right_angle() -> None:
    ties = neighbours(Placed(np.array([[1.0, 0], [1, 0.1], [0, 1], [-1, 0]]), np.ones(4)), 3).toarray()
    assert (ties[3] > 0).tolist() == [False, False, False, False]
    assert (ties[2] > 0).tolist() == [False, True, False, False]


def test_centring_takes_the_common_direction_away() -> None:
    points = separated(3, 4) + 1e3
    rows, _ = placed(Pool.of(points), "centred", weighted=False)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(12))
    assert cosine_similarity(rows).min() < 0 < cosine_similarity(points).min()


def test_spectrum_has_a_zero_for_every_separate_part_and_none_for_isolated_nodes() -> None:
    whole = np.ones((4, 4)) - np.eye(4)
    values = spectrum(block_diag(whole, 3 * whole, np.zeros((1, 1)), whole), 5)
    assert values == pytest.approx([0, 0, 0, 4 / 3, 4 / 3])  # of a complete graph of m nodes: 0, then m/(m − 1)
    assert len(spectrum(np.zeros((3, 3)), 5)) == 0


def test_spectrum_is_that_of_networkx() -> None:
    graph = networkx.karate_club_graph()
    expected = networkx.normalized_laplacian_spectrum(graph)
    assert spectrum(networkx.to_numpy_array(graph), 34) == pytest.approx(np.sort(expected), abs=1e-9)


@pytest.mark.parametrize("name", ["eigengap", "louvain"])
def test_groups_of_unequal_size_are_counted(name: str) -> None:
    centres = separated(6, 1, dimensions=32)
    points = np.repeat(centres, [12, 14, 17, 21, 26, 34], axis=0) + RNG(0).normal(size=(124, 32))
    sizes = RNG(1).integers(1, 200, 124)
    assert ESTIMATORS[name].count(Pool.of(points, sizes), settings_of(name)).count == 6


@pytest.mark.parametrize("name", ["eigengap", "louvain"])
def test_a_lone_prototype_is_no_class(name: str) -> None:
    points = np.concatenate([separated(4, 6, dimensions=32), -100 * np.ones((1, 32))])
    assert ESTIMATORS[name].count(Pool.of(points), settings_of(name, ["scale=raw"])).count == 4


def test_prototypes_that_nothing_ties_are_one_class() -> None:
    points = np.eye(6)
    for name in ("eigengap", "louvain"):
        assert ESTIMATORS[name].count(Pool.of(points), settings_of(name, ["scale=raw"])).count == 1


def test_a_larger_resolution_gives_more_communities() -> None:
    points = RNG(0).normal(size=(120, 6))
    counts = [
        ESTIMATORS["louvain"].count(Pool.of(points), settings_of("louvain", [f"resolution={r}"])).count
        for r in (0.2, 1, 5)
    ]
    assert counts[0] < counts[1] < counts[2]
