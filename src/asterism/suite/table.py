"""A suite's table as values: our mean and sample standard deviation over seeds, the printed number, the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from asterism.errors import AsterismError
from asterism.metrics import Scores, count_error, mean_and_deviation
from asterism.report.read import StageResults
from asterism.suite.paper import Cell, Number, Printed, printed
from asterism.suite.plan import Place, Suite, groups, places, planned, sentence
from asterism.suite.records import PARTS, PROTOCOLS, Found, Record, over_seeds

ACCURACIES = tuple(f"{protocol}.{part}" for protocol in PROTOCOLS for part in PARTS)
MEASURES = (*ACCURACIES, "estimated", "count_error", "nmi", "ari", "forgetting", "seconds")
COMPARED = {"known": "headwise.known", "novel": "headwise.novel", "all": "headwise.all", "estimated": "estimated"}


@dataclass(frozen=True)
class Measured:
    """Mean and sample standard deviation of so many seeds; one seed has no deviation."""

    mean: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class Line:
    """One row in one group of columns, after one stage. What nobody measured or printed is not in the mappings."""

    stage: str
    group: str
    row: str
    seeds: tuple[int, ...]
    ours: Mapping[str, Measured]  # by measure
    theirs: Cell
    failed: tuple[str, ...]  # sentences
    departures: tuple[str, ...]
    true: int | None = None  # novel classes of the stage
    given: bool = False  # their number was given, not estimated

    def difference(self, part: str) -> float | None:
        """Ours minus theirs, where both are there."""
        ours, theirs = self.ours.get(COMPARED[part]), self.theirs.get(part)
        return None if ours is None or theirs is None else ours.mean - theirs.mean


@dataclass(frozen=True)
class Table:
    """A whole table: lines in the order of stages, groups and rows."""

    suite: Suite
    paper: Printed
    lines: tuple[Line, ...]
    records: tuple[Record, ...] = field(default=(), repr=False)  # that it was made of

    def part(self, stage: str, group: str) -> tuple[Line, ...]:
        """The lines of one group of columns after one stage."""
        return tuple(line for line in self.lines if (line.stage, line.group) == (stage, group))

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Stage and group of every part, in order."""
        return tuple(dict.fromkeys((line.stage, line.group) for line in self.lines))

    @property
    def measured(self) -> int:
        """Lines of which at least one seed was measured."""
        return sum(bool(line.seeds) for line in self.lines)

    @property
    def seconds(self) -> float:
        """What all runs behind it took, shared known stages counted once."""
        known = {r.origin: r.known_seconds for r in self.records}
        return sum(known.values()) + sum(record.seconds for record in self.records)


def tabled(
    suite: Suite, found: Found, *, overrides: Sequence[str] = (), chosen: Sequence[Place] | None = None
) -> Table:
    """The table of a suite from the records there are; the chosen places, or all of them."""
    wanted = places(suite) if chosen is None else tuple(chosen)
    plans, refused = [], dict[tuple[str, str], str]()
    for place in wanted:
        try:
            plans.append(planned(suite, place, overrides))
        except AsterismError as error:
            refused[place.group, place.row] = sentence(error)
    cells, paper = over_seeds(found, plans), printed(suite.paper)
    lines = tuple(
        _line(suite, paper, stage, group, row, cells.get((group, row), []), refused.get((group, row)))
        for stage in suite.stages
        for group, row in _rows(suite, wanted)
    )
    return Table(suite, paper, lines, tuple(record for records in cells.values() for record in records))


def _rows(suite: Suite, wanted: Sequence[Place]) -> Iterator[tuple[str, str]]:
    """Group and row of every line, in the order of the suite."""
    there = {(place.group, place.row) for place in wanted}
    for dataset, setting in groups(suite):
        group = f"{dataset}/{setting}" if setting else dataset
        yield from ((group, row.name) for row in suite.rows if (group, row.name) in there)


def _line(
    suite: Suite, paper: Printed, stage: str, group: str, row: str, records: Sequence[Record], refused: str | None
) -> Line:
    good = [record for record in records if not record.failed and record.stage(stage) is not None]
    sentences = [record.failed for record in records if record.failed] + ([refused] if refused else [])
    setting = suite.setting(group.partition("/")[2])
    ends = [end for record in good if (end := record.stage(stage)) is not None]
    return Line(
        stage=stage,
        group=group,
        row=row,
        seeds=tuple(record.seed for record in good),
        ours=_ours(suite, stage, good),
        theirs=_theirs(suite, paper, stage, group, row),
        failed=tuple(dict.fromkeys(sentences)),
        departures=tuple(dict.fromkeys((*suite.departures, *setting.departures, *suite.row(row).departures))),
        true=ends[0].true if ends else None,
        given=any(_given(record, stage) for record in good),
    )


def _theirs(suite: Suite, paper: Printed, stage: str, group: str, row: str) -> Cell:
    return paper.cell("start" if suite.moment == "start" else stage, group, row)


def _given(record: Record, stage: str) -> bool:
    number = int(stage.rpartition("-")[2]) - 1 if stage.startswith("novel-") else 0
    return record.settings.get(f"novel.{number}.discovery.classes") is not None


def _ours(suite: Suite, stage: str, records: Sequence[Record]) -> dict[str, Measured]:
    values = {measure: [_value(suite, record, stage, measure) for record in records] for measure in MEASURES}
    present = {measure: [v for v in found if v is not None] for measure, found in values.items()}
    return {measure: Measured(*mean_and_deviation(found), len(found)) for measure, found in present.items() if found}


def _value(suite: Suite, record: Record, stage: str, measure: str) -> float | None:
    end = record.stage(stage)
    if measure == "seconds":
        return record.known_seconds if stage == "known" else record.seconds
    protocol, _, part = measure.partition(".")
    if suite.moment == "start":
        moment = record.starts.get(stage)
        return getattr(getattr(moment, protocol), part) if part and moment is not None else None
    if end is None:
        return None
    return OTHERS[measure](end) if not part else getattr(_scores(end, protocol), part)


def _scores(end: StageResults, protocol: str) -> Scores:
    return end.headwise if protocol == "headwise" else end.joint


OTHERS: Mapping[str, Callable[[StageResults], float | None]] = {
    "estimated": lambda end: end.estimated,
    "count_error": lambda end: None if end.estimated is None else count_error(end.true, end.estimated),
    "nmi": lambda end: end.nmi,
    "ari": lambda end: end.ari,
    "forgetting": lambda end: end.forgetting,
}


def average_count_error(table: Table, row: str) -> Measured | None:
    """Mean and deviation over groups of a row's count errors, where every group that it has was measured."""
    lines = [line for line in table.lines if line.row == row]
    errors = [line.ours["count_error"].mean for line in lines if "count_error" in line.ours]
    return Measured(*mean_and_deviation(errors), len(errors)) if errors and len(errors) == len(lines) else None


def words(number: Measured | Number | None, digits: int = 1) -> str:
    """``45.8 ± 1.2``; empty where there is nothing."""
    if number is None:
        return ""
    spread = "" if number.deviation is None else f" ± {number.deviation:.{digits}f}"
    return f"{number.mean:.{digits}f}{spread}"
