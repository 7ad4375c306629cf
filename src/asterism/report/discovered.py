"""What the novel stages of a run discovered: the estimate in words, whom each row stands for, what was forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asterism.metrics import UNMATCHED, joint_assignment
from asterism.report.explained import EstimateRecord, Exemplar, Explained
from asterism.report.read import RunRecord, ScreenedSite, StageResults, StageTables
from asterism.report.words import amount, counted

ANY_KNOWN = "any known"
MOST_NAMED = 6


@dataclass(frozen=True)
class DiscoveredRow:
    """A row of the head that a stage added, the true class it stands for (if any), and test images near it."""

    name: str
    stands_for: str
    images: tuple[Exemplar, ...]


@dataclass(frozen=True)
class Screened:
    """What novel class data filtering came to over all participants; shares and AUROC are in percent.

    What needs true classes is None where nobody knows them; ``sites`` is empty outside a simulation.
    """

    images: int | None  # looked at
    flagged: int  # called novel
    held: int
    threshold: float | None
    rate: float | None  # of novelty
    auroc: float | None
    recall: float | None
    precision: float | None
    false_alarms: float | None
    sites: tuple[ScreenedSite, ...] = ()


@dataclass(frozen=True)
class DiscoveredStage:
    """One novel stage; ``explained`` and ``tables`` are None where the run kept none."""

    name: str
    true: int
    sentence: str
    support: str
    explained: Explained | None
    tables: StageTables | None
    screened: Screened | None
    rows: tuple[DiscoveredRow, ...]


@dataclass(frozen=True)
class Matched:
    """True novel classes and, last, all known ones (lines) by discovered rows and, last, any known row: percent."""

    lines: tuple[str, ...]
    columns: tuple[str, ...]
    shares: NDArray[np.float64]


def discovered(record: RunRecord) -> tuple[DiscoveredStage, ...]:
    """Every novel stage in order."""
    return tuple(_stage(record, results) for results in record.results.stages[1:])


def _stage(record: RunRecord, results: StageResults) -> DiscoveredStage:
    explained = record.explained.get(results.name)
    tables = record.tables.get(results.name)
    estimate = explained.estimate if explained else None
    return DiscoveredStage(
        name=results.name,
        true=results.true,
        sentence=estimate_sentence(results, estimate),
        support=support_sentence(estimate) if estimate else "",
        explained=explained,
        tables=tables,
        screened=_screened(record, results.name),
        rows=tuple(_rows(explained, tables)) if explained else (),
    )


def estimate_sentence(results: StageResults, estimate: EstimateRecord | None) -> str:
    """How many classes were estimated, how many there are, and how far the estimate can be trusted."""
    used = "an unknown number of" if results.estimated is None else amount(results.estimated)
    new = "new class" if results.estimated == 1 else "new classes"
    if estimate is None:
        return f"{used} {new} counted, {amount(results.true)} true"
    if results.estimated == estimate.estimated:
        return f"{used} {new} estimated, {amount(results.true)} true; verdict: {estimate.verdict}"
    return (
        f"{used} {new} given, {amount(results.true)} true; "
        f"{estimate.method} would have estimated {estimate.estimated:,}, verdict: {estimate.verdict}"
    )


def support_sentence(estimate: EstimateRecord) -> str:
    """What leaving out one site at a time does to the estimate."""
    low, high = estimate.interval
    without = {s.site: s.without for s in estimate.sites if s.without is not None}
    moved = [f"{site} ({n:,})" for site, n in without.items() if n != estimate.estimated]
    if not without:
        return f"From parts of the pool the estimate is {low:,} to {high:,}."
    if not moved:
        return f"It stays {low:,} whichever of the {counted(len(without), 'site')} is left out."
    further = f" and {len(moved) - MOST_NAMED:,} more" if len(moved) > MOST_NAMED else ""
    named = ", ".join(moved[:MOST_NAMED]) + further
    return f"With one site left out at a time it is {low:,} to {high:,}; it moves without {named}."


def _rows(explained: Explained, tables: StageTables | None) -> Iterator[DiscoveredRow]:
    stands_for = matched_classes(tables) if tables else {}
    for row in explained.exemplars:
        yield DiscoveredRow(row.row, stands_for.get(row.row, ""), row.images)


def matched_classes(tables: StageTables) -> dict[str, str]:
    """The true class of every discovered row that stands for one under the best joint matching."""
    known, _, joint = tables.counted()
    assignment = joint_assignment(joint, len(known))
    return {
        tables.rows[row]: tables.classes[true]
        for row, true in enumerate(assignment.tolist())
        if row >= len(known) and true != UNMATCHED
    }


def matched(tables: StageTables) -> Matched:
    """The joint table folded to what was discovered; matched rows come in the order of their classes."""
    known_table, _, joint = tables.counted()
    known = len(known_table)
    assignment = joint_assignment(joint, known)[known:]
    order = np.argsort(np.where(assignment == UNMATCHED, len(tables.classes), assignment), kind="stable") + known
    folded = np.concatenate([joint[:, order], joint[:, :known].sum(axis=1, keepdims=True)], axis=1)
    counts = np.concatenate([folded[known:], folded[:known].sum(axis=0, keepdims=True)])
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Matched((*tables.classes[known:], ANY_KNOWN), (*(tables.rows[i] for i in order), ANY_KNOWN), shares)


def remembered(record: RunRecord) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    """After each stage, the headwise accuracy on the classes of every stage so far; empty where tables are missing."""
    stages = record.results.stages
    if len(stages) < 2 or any(stage.name not in record.tables for stage in stages):
        return ()
    # Only here, because it brings torch: the page of a known stage alone does without.
    from asterism.evaluation import by_stage

    sizes = [stage.true for stage in stages]
    lines = []
    for number, stage in enumerate(stages, start=1):
        known, novel, joint = record.tables[stage.name].counted()
        found = by_stage({"known": known, "novel": novel, "joint": joint}, sizes[:number])
        lines.append((stage.name, (*found, *([None] * (len(stages) - number)))))
    return tuple(lines)


def _screened(record: RunRecord, stage: str) -> Screened | None:
    """What the answer to the stage's order to screen added up to."""
    answers = [answer for answer in record.answered if answer.stage == stage and answer.task == "screen"]
    if not answers or "held" not in answers[-1].monitors:
        return None
    counts, figures = answers[-1].monitors, answers[-1].figures
    novel, caught = counts.get("novel", 0.0), counts.get("novel_flagged", 0.0)
    known, alarms = counts.get("known", 0.0), counts.get("known_flagged", 0.0)
    images, auroc, rate = (figures.get(name) for name in ("images", "auroc", "novelty_rate"))
    return Screened(
        images=None if images is None else int(images),
        flagged=int(counts.get("flagged", 0.0)),
        held=int(counts["held"]),
        threshold=figures.get("threshold"),
        rate=None if rate is None else 100 * rate,
        auroc=None if auroc is None else 100 * auroc,
        recall=_percent(caught, novel),
        precision=_percent(caught, caught + alarms),
        false_alarms=_percent(alarms, known),
        sites=record.screened.get(stage, ()),
    )


def _percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None
