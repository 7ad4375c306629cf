"""Accuracies over the rounds of a whole run, stage after stage, as plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from asterism.report.read import RunRecord
from asterism.report.words import PARTS

Points = tuple[tuple[int, float], ...]


def curve(record: RunRecord, protocol: str, part: str) -> Points:
    """Rounds since the start of the run and the accuracy measured after each."""
    before = starts(record)
    return tuple(
        (before[event.stage] + event.round, value)
        for event in record.evaluated
        if event.stage in before and (value := getattr(getattr(event, protocol), part)) is not None
    )


def parts(record: RunRecord, protocol: str) -> dict[str, Points]:
    """The curve of each part that was measured; that of all classes only where there are novel ones among them."""
    mixed = replace(record, evaluated=tuple(e for e in record.evaluated if getattr(e, protocol).novel is not None))
    curves = {part: curve(mixed if part == "all" else record, protocol, part) for part in PARTS}
    return {part: points for part, points in curves.items() if points}


def starts(record: RunRecord) -> dict[str, int]:
    """Rounds that were over before each stage."""
    rounds = [stage.rounds for stage in record.results.stages]
    return {stage.name: sum(rounds[:s]) for s, stage in enumerate(record.results.stages)}


def mean_curve(curves: Sequence[Points]) -> Points:
    """The mean of several curves at the rounds that all of them have."""
    values = [dict(points) for points in curves]
    shared = sorted(set.intersection(*(set(points) for points in values)))
    return tuple((round, statistics.fmean(points[round] for points in values)) for round in shared)
