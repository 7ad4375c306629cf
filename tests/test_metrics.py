from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from asterism.metrics import (
    UNMATCHED,
    Scores,
    accuracy,
    adjusted_rand,
    clustered_accuracy,
    count_error,
    count_table,
    forgetting,
    headwise,
    hungarian,
    joint,
    joint_assignment,
    mean_and_deviation,
    normalised_mutual_information,
    per_class,
    single_matching,
)

Counts = NDArray[np.int64]

tables = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.integers(0, 9))


def table(*rows: Sequence[int]) -> Counts:
    return np.array(rows, dtype=np.int64)


def most_right(counts: Counts) -> int:
    """Literally every one-to-one assignment, by trying every order of the longer side."""
    short, long = sorted(counts.shape)
    wide = counts if counts.shape == (short, long) else counts.T
    return max(sum(int(wide[i, c]) for i, c in enumerate(order)) for order in permutations(range(long), short))


def expanded(counts: Counts) -> tuple[Counts, Counts]:
    """One true and one predicted label per image."""
    true, predicted = np.indices(counts.shape).reshape(2, -1)
    return np.repeat(true, counts.ravel()), np.repeat(predicted, counts.ravel())


def known_and_novel(known: int, novel: int, found: int) -> st.SearchStrategy[Counts]:
    return arrays(np.int64, (known + novel, known + found), elements=st.integers(0, 9))


@given(tables)
def test_hungarian_equals_trying_every_assignment(counts: Counts) -> None:
    assignment = hungarian(counts)
    matched = np.flatnonzero(assignment != UNMATCHED)
    assert counts[assignment[matched], matched].sum() == most_right(counts)
    assert len(set(assignment[matched])) == len(matched) == min(counts.shape)


@given(tables)
def test_clustered_accuracy_counts_images_of_unmatched_clusters_and_classes_as_errors(counts: Counts) -> None:
    expected = 100 * most_right(counts) / counts.sum() if counts.sum() else None
    assert clustered_accuracy(counts) == pytest.approx(expected)


def test_a_surplus_cluster_is_unmatched_and_its_images_are_errors() -> None:
    counts = table([5, 0, 3], [0, 4, 0])
    assert hungarian(counts).tolist() == [0, 1, UNMATCHED]
    assert clustered_accuracy(counts) == pytest.approx(100 * 9 / 12)


def test_a_class_without_a_cluster_is_all_errors() -> None:
    counts = table([5, 0], [0, 4], [3, 0])
    assert clustered_accuracy(counts) == pytest.approx(100 * 9 / 12)
    assert per_class(counts, hungarian(counts)) == (100, 100, 0)


def test_accuracy_is_the_diagonal_in_percent() -> None:
    assert accuracy(table([3, 1], [2, 2])) == pytest.approx(100 * 5 / 8)
    assert accuracy(table([3, 1, 4], [2, 2, 4])) == pytest.approx(100 * 5 / 16)
    assert accuracy(table([0, 0], [0, 0])) is None


@given(tables, st.integers(0, 2**32))
def test_renaming_clusters_or_classes_changes_no_score(counts: Counts, seed: int) -> None:
    rng = np.random.default_rng(seed)
    other = counts[rng.permutation(counts.shape[0])][:, rng.permutation(counts.shape[1])]
    assert clustered_accuracy(other) == pytest.approx(clustered_accuracy(counts))
    assert adjusted_rand(other) == adjusted_rand(counts)
    assert normalised_mutual_information(other) == pytest.approx(normalised_mutual_information(counts))


def test_tables_of_sites_add_up_to_the_table_of_all() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(-1, 4, 200), rng.integers(0, 6, 200)
    whole = count_table(true, predicted, 4, 6)
    parts = count_table(true[:70], predicted[:70], 4, 6) + count_table(true[70:], predicted[70:], 4, 6)
    assert np.array_equal(whole, parts)
    assert whole.sum() == (true >= 0).sum()
    assert all(whole[t, p] == ((true == t) & (predicted == p)).sum() for t in range(4) for p in range(6))


def test_headwise_weights_parts_by_class_counts_and_not_by_images() -> None:
    scores = headwise(table([8, 2, 0], [0, 9, 1], [0, 0, 10]), table([0, 300], [100, 0]))
    assert scores == Scores(known=90, novel=100, all=(3 * 90 + 2 * 100) / 5)


def test_headwise_reproduces_a_row_of_the_paper() -> None:
    right = np.eye(80, dtype=np.int64), np.eye(20, dtype=np.int64)
    known = 726 * right[0] + 274 * np.roll(right[0], 1, axis=1)
    novel = 458 * right[1] + 271 * (np.roll(right[1], 1, axis=1) + np.roll(right[1], 2, axis=1))
    scores = headwise(known, novel)
    assert scores.known == pytest.approx(72.6)
    assert scores.novel == pytest.approx(45.8)
    assert scores.all == pytest.approx(67.24)


def test_headwise_without_novel_classes_is_the_known_part() -> None:
    assert headwise(table([3, 1], [0, 4]), np.zeros((0, 0), np.int64)) == Scores(87.5, None, 87.5)


def test_headwise_counts_finding_nothing_as_zero() -> None:
    assert headwise(table([4]), np.zeros((3, 0), np.int64)) == Scores(100, 0, 25)


def test_a_part_without_images_is_none_and_does_not_weigh() -> None:
    assert headwise(table([0]), table([0, 2], [2, 0])) == Scores(None, 100, 100)
    assert headwise(table([2]), table([0, 0], [0, 0])) == Scores(100, None, 100)
    assert headwise(table([0]), table([0])) == Scores(None, None, None)


@given(known_and_novel(2, 3, 4))
def test_joint_equals_trying_every_assignment_of_novel_rows(counts: Counts) -> None:
    scores = joint(counts, 2)
    known, novel = counts[:2].sum(), counts[2:].sum()
    assert scores.known == pytest.approx(100 * np.trace(counts[:2]) / known if known else None)
    assert scores.novel == pytest.approx(100 * most_right(counts[2:, 2:]) / novel if novel else None)
    if known and novel:
        assert scores.known is not None and scores.novel is not None
        assert scores.all == pytest.approx((2 * scores.known + 3 * scores.novel) / 5)


def test_joint_counts_crossing_between_known_and_novel_as_errors() -> None:
    counts = table([6, 0, 4, 0], [0, 10, 0, 0], [5, 0, 0, 5], [0, 0, 10, 0])
    assert joint(counts, 2) == Scores(known=80, novel=75, all=77.5)
    assert joint_assignment(counts, 2).tolist() == [0, 1, 3, 2]
    assert per_class(counts, joint_assignment(counts, 2)) == (60, 100, 50, 100)


def test_joint_without_novel_rows_misses_every_novel_image() -> None:
    assert joint(table([9, 1], [0, 10], [4, 6]), 2) == Scores(95, 0, 2 * 95 / 3)


def test_joint_without_novel_classes_is_the_known_part() -> None:
    assert joint(table([9, 1], [0, 10]), 2) == Scores(95, None, 95)
    assert joint(table([9, 0, 1], [0, 10, 0]), 2) == Scores(95, None, 95)


def test_joint_without_novel_images_does_not_weigh_them() -> None:
    assert joint(table([9, 1, 0], [0, 10, 0], [0, 0, 0]), 2) == Scores(95, None, 95)


def test_more_novel_rows_than_classes_and_fewer() -> None:
    assert joint(table([4, 0, 0, 0], [0, 3, 0, 1]), 1) == Scores(100, 75, 87.5)
    assert joint(table([4, 0], [0, 3], [0, 1]), 1).novel == 75


@given(known_and_novel(2, 2, 3))
def test_single_matching_is_best_over_everything_and_weights_images(counts: Counts) -> None:
    scores = single_matching(counts, 2)
    assert scores.all == pytest.approx(100 * most_right(counts) / counts.sum() if counts.sum() else None)
    if scores.known is not None and scores.novel is not None and scores.all is not None:
        images = counts[:2].sum(), counts[2:].sum()
        mean = (scores.known * images[0] + scores.novel * images[1]) / sum(images)
        assert scores.all == pytest.approx(mean)


def test_single_matching_may_give_a_known_row_to_a_novel_class_where_joint_may_not() -> None:
    counts = table([1, 9], [10, 0])
    assert single_matching(counts, 1) == Scores(90, 100, 95)
    assert joint(counts, 1) == Scores(10, 0, 5)


@given(tables)
def test_agreement_equals_scikit_learn_on_the_expanded_labels(counts: Counts) -> None:
    true, predicted = expanded(counts)
    assert adjusted_rand(counts) == pytest.approx(adjusted_rand_score(true, predicted), abs=1e-12)
    expected = normalized_mutual_info_score(true, predicted)
    assert normalised_mutual_information(counts) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "information", "rand"),
    [
        (table([7]), 1, 1),
        (table([7, 0], [0, 0]), 1, 1),
        (table([3], [4]), 0, 0),
        (table([3, 4]), 0, 0),
        (table([1, 0], [0, 1]), 1, 1),
        (table([0, 0], [0, 0]), 1, 1),
        (np.zeros((3, 0), np.int64), 1, 1),
    ],
)
def test_agreement_of_degenerate_groupings(counts: Counts, information: float, rand: float) -> None:
    assert normalised_mutual_information(counts) == information
    assert adjusted_rand(counts) == rand


def test_adjusted_rand_survives_counts_whose_pairs_outgrow_64_bits() -> None:
    small = table([3, 1], [1, 2])
    huge = small * 10**9
    shares = np.array(small / 7)
    same, rows, columns = (shares**2).sum(), (shares.sum(1) ** 2).sum(), (shares.sum(0) ** 2).sum()
    limit = (same - rows * columns) / ((rows + columns) / 2 - rows * columns)
    assert adjusted_rand(huge) == pytest.approx(limit, rel=1e-6)


@given(known_and_novel(2, 2, 3))
def test_float_tables_score_as_whole_ones(counts: Counts) -> None:
    floats = counts.astype(np.float32)
    assert joint(floats, 2) == joint(counts, 2)
    assert adjusted_rand(floats) == adjusted_rand(counts)


@pytest.mark.parametrize("wrong", [-1.0, 0.5, np.nan])
def test_a_table_of_anything_but_counts_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        accuracy(np.array([[wrong, 1.0]]))


def test_scores_leave_the_table_as_it_was() -> None:
    counts = table([6, 0, 4], [0, 9, 1], [5, 2, 3])
    before = counts.copy()
    joint(counts, 2), single_matching(counts, 2), per_class(counts), adjusted_rand(counts)
    assert np.array_equal(counts, before)


def test_per_class_is_none_where_a_class_has_no_images() -> None:
    assert per_class(table([3, 1], [0, 0])) == (75, None)


def test_forgetting_is_best_earlier_minus_final() -> None:
    lost = forgetting([[76.0], [72.0, 50.0], [65.0, 41.0, 30.0]])
    assert lost.stages == (11.0, 9.0)
    assert lost.mean == 10.0


def test_forgetting_is_negative_where_a_stage_improved() -> None:
    assert forgetting([[70.0], [72.0, 50.0]]).stages == (-2.0,)


def test_forgetting_leaves_out_what_was_not_measured() -> None:
    lost = forgetting([[70.0], [None, None], [65.0, 41.0, 30.0]])
    assert lost.stages == (5.0, None)
    assert lost.mean == 5.0


@pytest.mark.parametrize("history", [[], [[70.0]]])
def test_nothing_is_forgotten_before_a_second_stage(history: list[list[float | None]]) -> None:
    assert forgetting(history).stages == ()
    assert forgetting(history).mean is None


def test_count_error_of_the_paper_is_a_percentage_of_the_true_count() -> None:
    assert count_error(20, 19) == 5
    assert count_error(20, 23) == 15
    assert count_error(20, 0) == 100
    assert count_error(0, 3) is None


def test_deviation_is_of_a_sample_and_absent_for_one_seed() -> None:
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_deviation([4.5]) == (4.5, None)
