"""The rows of a report's tables: one per class, per site, per failure and per kind of message."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from asterism.metrics import UNMATCHED, Assignment, hungarian, joint_assignment, per_class
from asterism.report.read import LedgerLine, RunRecord, StageTables
from asterism.report.words import participants

# Asked of everyone, or once more of those who train: being asked says nothing about being chosen for a round.
NOT_TRAINING = frozenset(
    {
        "evaluate",
        "prototypes",
        "lloyd",
        "screen",
        "screen-statistics",
        "screen-calibrate",
        "orchestra-centroids",
        "class-statistics",
    }
)


@dataclass(frozen=True)
class ClassRow:
    """One class after the last round: percentages, and the class its images are most often taken for."""

    name: str
    stage: str
    images: int
    headwise: float | None
    joint: float | None
    confused: str = ""
    confused_percent: float | None = None


@dataclass(frozen=True)
class SiteRow:
    """One participant over the stages of the run; ``expected`` is the accuracy to expect on its own mix of classes.

    ``classes`` and ``expected`` are None where the run kept no class counts.
    """

    name: str
    images: int
    classes: int | None
    rounds: int
    failures: int
    expected: float | None


@dataclass(frozen=True)
class FailureRow:
    """One participant's failures for one reason."""

    participant: str
    reason: str
    times: int
    rounds: str
    detail: str


@dataclass(frozen=True)
class Messages:
    """What left a site, or what left for a task: how often and how much."""

    name: str
    messages: int
    bytes: int


def class_rows(record: RunRecord) -> tuple[ClassRow, ...]:
    """Every class of the newest table, in class order; empty where the run kept none."""
    tables = newest_tables(record)
    if tables is None:
        return ()
    known_table, novel_table, joint_table = tables.counted()
    assignment = joint_assignment(joint_table, len(known_table))
    headwise = per_class(known_table) + per_class(novel_table, hungarian(novel_table))
    joint = per_class(joint_table, assignment)
    stage_of = [stage.name for stage in record.results.stages for _ in range(stage.true)]
    stage_of += [tables.stage] * (len(tables.classes) - len(stage_of))
    return tuple(
        ClassRow(name, stage, int(joint_table[c].sum()), headwise[c], joint[c], *_worst(tables, assignment, c))
        for c, (name, stage) in enumerate(zip(tables.classes, stage_of, strict=False))
    )


def _worst(tables: StageTables, assignment: Assignment, true: int) -> tuple[str, float | None]:
    """What most of a class's wrong images are taken for, and their share of its images in percent."""
    counts = np.array(tables.joint[true])
    wrong = np.where(assignment == true, 0, counts)
    if not wrong.any():
        return "", None
    row = int(wrong.argmax())
    taken_for = int(assignment[row])
    name = tables.rows[row] if taken_for == UNMATCHED else tables.classes[taken_for]
    return name, float(100 * wrong[row] / counts.sum())


def newest_tables(record: RunRecord) -> StageTables | None:
    """The count tables of the last stage that kept them."""
    kept = [record.tables[stage.name] for stage in record.results.stages if stage.name in record.tables]
    return kept[-1] if kept else None


def site_rows(record: RunRecord) -> tuple[SiteRow, ...]:
    """Every participant, in the order of the split."""
    chosen = _rounds_chosen(record)
    failures = Counter(failed.participant for answer in record.answered for failed in answer.failed)
    accuracy = {row.name: row.joint for row in class_rows(record)}
    rows = []
    for name in participants(record):
        held = _held(record, name)
        rows.append(
            SiteRow(
                name=name,
                images=_images(record, name),
                classes=None if held is None else sum(n > 0 for n in held.values()),
                rounds=chosen[name],
                failures=failures[name],
                expected=None if held is None else _expected(held, accuracy),
            )
        )
    return tuple(rows)


def failure_rows(record: RunRecord) -> tuple[FailureRow, ...]:
    """Failures by participant and reason, the most frequent first; ``detail`` is the newest one's."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    details: dict[tuple[str, str], str] = {}
    for answer in record.answered:
        for failed in answer.failed:
            key = failed.participant, failed.reason
            places[key].append((answer.stage, answer.round + 1))
            details[key] = failed.detail or details.get(key, "")
    rows = [FailureRow(*key, len(found), _by_stage(found), details[key]) for key, found in places.items()]
    return tuple(sorted(rows, key=lambda row: (-row.times, row.participant, row.reason)))


def messages(lines: Iterable[LedgerLine], by: str) -> tuple[Messages, ...]:
    """Messages and bytes by ``site`` or by ``task``, in alphabetical order."""
    number: Counter[str] = Counter()
    amount: Counter[str] = Counter()
    for line in lines:
        name = line.site if by == "site" else line.task
        number[name] += 1
        amount[name] += line.bytes
    return tuple(Messages(name, number[name], amount[name]) for name in sorted(number))


def missed_rounds(record: RunRecord) -> str:
    """Where too few answered, as ``known 3, 7``; empty where that never happened."""
    return _by_stage([(answer.stage, answer.round + 1) for answer in record.answered if answer.missed])


def _rounds_chosen(record: RunRecord) -> Counter[str]:
    rounds = {
        (name, answer.stage, answer.round)
        for answer in record.answered
        if answer.task not in NOT_TRAINING
        for name in answer.asked
    }
    return Counter(name for name, _, _ in rounds)


def _held(record: RunRecord, participant: str) -> Mapping[str, int] | None:
    """Labelled images by class that a participant holds in the stages that ran."""
    if record.split is None or record.split.counts is None:
        return None
    held: Counter[str] = Counter()
    for stage in record.results.stages:
        held.update(record.split.counts.get(stage.name, {}).get(participant, {}))
    return held


def _images(record: RunRecord, participant: str) -> int:
    ran = {stage.name for stage in record.results.stages}
    stages = record.split.stages if record.split else ()
    return sum(len(stage.shares.get(participant, ())) for stage in stages if stage.name in ran)


def _expected(held: Mapping[str, int], accuracy: Mapping[str, float | None]) -> float | None:
    """Mean of the classes' accuracies, each weighted by how many images of it are held."""
    pairs = [(n, score) for name, n in held.items() if n and (score := accuracy.get(name)) is not None]
    total = sum(n for n, _ in pairs)
    return sum(n * score for n, score in pairs) / total if total else None


def _by_stage(places: Iterable[tuple[str, int]]) -> str:
    """``known 3, 7; novel-1 2`` from stages and rounds."""
    rounds: dict[str, list[int]] = {}
    for stage, round in places:
        rounds.setdefault(stage, []).append(round)
    return "; ".join(f"{stage} {', '.join(_runs(sorted(set(found))))}" for stage, found in rounds.items())


def _runs(numbers: list[int]) -> Iterator[str]:
    """``1–3`` and ``7`` from 1, 2, 3, 7."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            first, last = numbers[start], numbers[i - 1]
            yield str(first) if first == last else f"{first}–{last}"
            start = i
