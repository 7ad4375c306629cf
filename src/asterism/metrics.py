"""Accuracies, agreement and forgetting from count tables, which a federation can sum without seeing an image.

A table counts images by true class (row) and predicted row of the head (column); known classes come first
in both. Which column stands for which class is an *assignment*: a class number per column, or ``UNMATCHED``,
where every image predicted there is an error. A protocol is a choice of assignment (see ``headwise``,
``joint`` and ``single_matching``), and accuracies are percentages of all images of the part, matched or not.
Tables may come as floats, which is what a federation adds up; anything but whole counts is refused.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Table: TypeAlias = NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Assignment: TypeAlias = NDArray[np.int64]

UNMATCHED = -1


@dataclass(frozen=True)
class Scores:
    """Percentages over known classes, novel classes and both; None where there is nothing to score."""

    known: float | None
    novel: float | None
    all: float | None


@dataclass(frozen=True)
class Forgetting:
    """Points lost since the best earlier accuracy, per earlier stage (None where unknown), and their mean."""

    stages: tuple[float | None, ...]
    mean: float | None


def count_table(true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, rows: int) -> Counts:
    """Images by true class and predicted row, (classes, rows); negative labels are left out."""
    labelled = true >= 0
    cells = true[labelled] * rows + predicted[labelled]
    return np.bincount(cells, minlength=classes * rows).astype(np.int64).reshape(classes, rows)


def diagonal(table: Table) -> Assignment:
    """The assignment of a supervised head: column i is class i."""
    columns = np.arange(table.shape[1])
    return np.where(columns < table.shape[0], columns, UNMATCHED)


def hungarian(table: Table) -> Assignment:
    """The one-to-one assignment of columns with most images right; surplus columns are unmatched."""
    assignment = np.full(table.shape[1], UNMATCHED)
    classes, columns = linear_sum_assignment(table, maximize=True)
    assignment[columns] = classes
    return assignment


def joint_assignment(table: Table, known: int) -> Assignment:
    """Known columns stand for their classes; novel columns are matched to novel classes on novel images."""
    novel = hungarian(table[known:, known:])
    return np.concatenate([np.arange(known), np.where(novel == UNMATCHED, UNMATCHED, novel + known)])


def accuracy(table: Table) -> float | None:
    """Percent of images on the diagonal."""
    return _percent(table, diagonal(table), slice(None))


def clustered_accuracy(table: Table) -> float | None:
    """Percent of images right under the best assignment of clusters to classes."""
    return _percent(table, hungarian(table), slice(None))


def assigned_accuracy(table: Table, assignment: Assignment) -> float | None:
    """Percent of images right under a given assignment of columns to classes."""
    return _percent(table, assignment, slice(None))


def headwise(known_table: Table, novel_table: Table) -> Scores:
    """The paper's protocol: each part is read from its own head, so known and novel never compete.

    ``known_table``: known images over known rows. ``novel_table``: images of all novel classes so far over
    the union of novel rows, (C_U, Ĉ). ``all`` weights both parts by their true class counts. Novel classes
    without any novel row (Ĉ = 0) score 0, not None: finding nothing must not vanish from a mean over seeds.
    """
    known = accuracy(known_table)
    novel = clustered_accuracy(novel_table)
    if len(novel_table) and not novel_table.shape[1]:
        novel = 0.0
    return Scores(known, novel, _by_class_count(known, len(known_table), novel, len(novel_table)))


def joint(table: Table, known: int) -> Scores:
    """What a user of the model gets: one arg-max over all rows of the head, Hungarian for novel rows only.

    ``table``: (C_L + C_U, C_L + Ĉ), of which the first ``known`` classes and columns are the known ones.
    A known image predicted as novel and a novel image predicted as known are errors.
    """
    assignment = joint_assignment(table, known)
    first, second = (_percent(table, assignment, part) for part in _parts(known))
    return Scores(first, second, _by_class_count(first, known, second, len(table) - known))


def single_matching(table: Table, known: int) -> Scores:
    """One Hungarian assignment over all classes and rows, split afterwards ("v2" of category discovery).

    Unlike ``joint`` it may hand a known row to a novel class or to another known class, so known accuracy is
    not the diagonal; and ``all`` is the share of images, as in that literature, not a mean by class counts.
    """
    assignment = hungarian(table)
    first, second = (_percent(table, assignment, part) for part in _parts(known))
    return Scores(first, second, _percent(table, assignment, slice(None)))


def per_class(table: Table, assignment: Assignment | None = None) -> tuple[float | None, ...]:
    """Percent right for each true class (None without images), on the diagonal unless assigned otherwise."""
    chosen = diagonal(table) if assignment is None else assignment
    return tuple(_percent(table, chosen, slice(c, c + 1)) for c in range(len(table)))


def normalised_mutual_information(table: Table) -> float:
    """Mutual information over the mean of both entropies, 0 to 1.

    No images, or one class in one cluster, agree perfectly (1, as in scikit-learn); one cluster over
    several classes says nothing (0).
    """
    counts = _whole(table)
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    if np.count_nonzero(rows) == np.count_nonzero(columns) <= 1:
        return 1.0
    entropies = _entropy(rows), _entropy(columns)
    information = sum(entropies) - _entropy(counts.ravel())
    return float(np.clip(2 * information / sum(entropies), 0, 1))


def adjusted_rand(table: Table) -> float:
    """Pair agreement corrected for chance, at most 1.

    Two equal groupings score 1, also where there is one group, no image at all, or every image is alone.
    Pairs are counted in whole numbers of any size, so nothing is rounded before the last division.
    """
    counts = _whole(table)
    together = _pairs(counts.ravel())
    same_class, same_cluster = _pairs(counts.sum(axis=1)), _pairs(counts.sum(axis=0))
    if together == same_class == same_cluster:
        return 1.0
    pairs = _pairs(counts.sum(keepdims=True).ravel())
    chance = same_class * same_cluster
    return (together * pairs - chance) * 2 / ((same_class + same_cluster) * pairs - 2 * chance)


def forgetting(history: Sequence[Sequence[float | None]]) -> Forgetting:
    """Best earlier minus final accuracy of each stage's classes but the last's; negative where they improved.

    ``history[t][s]``: accuracy, after stage t, of the classes that stage s ≤ t brought.
    """
    lost = tuple(_lost([row[s] for row in history[s:]]) for s in range(len(history) - 1))
    measured = [points for points in lost if points is not None]
    return Forgetting(lost, statistics.fmean(measured) if measured else None)


def count_error(true: int, estimated: int) -> float | None:
    """Distance of an estimated class count from the true one, in percent of that; None without classes."""
    return 100 * abs(estimated - true) / true if true else None


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation over seeds; one seed has no deviation."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _whole(table: Table) -> Counts:
    """The table in whole numbers: float32 counts are exact, their sums and squares are not."""
    if not (np.isfinite(table) & (table >= 0)).all() or (table % 1).any():
        raise ValueError("a count table holds whole numbers of images, none below zero")
    return table.astype(np.int64)


def _parts(known: int) -> tuple[slice, slice]:
    return slice(known), slice(known, None)


def _percent(table: Table, assignment: Assignment, part: slice) -> float | None:
    """Percent right among the images whose class is in ``part``; None without such images."""
    counts = _whole(table)
    total = counts[part].sum()
    matched = np.flatnonzero(assignment != UNMATCHED)
    hits = np.zeros(len(counts), dtype=np.int64)
    np.add.at(hits, assignment[matched], counts[assignment[matched], matched])
    return float(100 * hits[part].sum() / total) if total else None


def _by_class_count(known: float | None, c_known: int, novel: float | None, c_novel: int) -> float | None:
    """Mean of the parts that exist, weighted by how many classes they have."""
    parts = [(score, count) for score, count in ((known, c_known), (novel, c_novel)) if score is not None]
    classes = sum(count for _, count in parts)
    return sum(score * count for score, count in parts) / classes if classes else None


def _entropy(counts: Counts) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _pairs(counts: Counts) -> int:
    """Pairs within groups, as a Python integer: products of pairs outgrow 64 bits at 100,000 images."""
    return sum(n * (n - 1) // 2 for n in counts[counts > 0].tolist())


def _lost(accuracies: Sequence[float | None]) -> float | None:
    """Best of all but the last accuracy, minus the last."""
    *earlier, final = accuracies
    known = [value for value in earlier if value is not None]
    return max(known) - final if known and final is not None else None
