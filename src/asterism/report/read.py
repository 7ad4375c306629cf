"""What a run folder says, read back without its data set, its model, or the program that wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from asterism.config import Section, read_toml, validate
from asterism.errors import AsterismError
from asterism.metrics import Scores, Table
from asterism.privacy.chain import broken_line
from asterism.report.explained import Explained

Counts = tuple[tuple[int, ...], ...]
Amount = Annotated[int, Field(ge=0)]


class StageResults(Section, extra="ignore"):
    """The figures of one stage, after its last round."""

    name: str
    rounds: int
    seconds: float
    images: int
    true: int
    estimated: int | None = None
    headwise: Scores
    joint: Scores
    nmi: float | None = None
    ari: float | None = None
    forgetting: float | None = None


class Results(Section, extra="ignore"):
    """``results.json``: what a run came to."""

    run: str
    seed: int
    stages: Annotated[tuple[StageResults, ...], Field(min_length=1)]


class StageTables(Section, extra="ignore"):
    """``tables/<stage>.json``: test images by true class (known first) and predicted row of the head."""

    format: Literal[1]
    stage: str
    classes: tuple[str, ...]
    rows: tuple[str, ...]
    known: Counts
    novel: Counts
    joint: Counts

    def counted(self) -> tuple[Table, Table, Table]:
        """The known, novel and joint tables as arrays, each with its two axes also where one is empty."""
        known, classes, rows = len(self.known), len(self.classes), len(self.rows)
        return (
            np.array(self.known, dtype=np.int64).reshape(known, known),
            np.array(self.novel, dtype=np.int64).reshape(classes - known, max(rows - known, 0)),
            np.array(self.joint, dtype=np.int64).reshape(classes, rows),
        )


class SplitStage(Section, extra="ignore"):
    """One stage of ``split.json``: its classes, and the numbers of each participant's images."""

    name: str
    classes: tuple[str, ...]
    shares: Mapping[str, tuple[int, ...]]


class SplitRecord(Section, extra="ignore"):
    """``split.json``; ``counts`` (stage, participant, class, images) where the run kept them."""

    settings: Mapping[str, Any]
    participants: tuple[str, ...]
    stages: tuple[SplitStage, ...]
    counts: Mapping[str, Mapping[str, Mapping[str, Amount]]] | None = None


class Failed(Section, extra="ignore"):
    """A participant that was asked and gave nothing usable."""

    participant: str
    reason: str
    detail: str = ""


class Started(Section, extra="ignore"):
    """The event that opens a run."""

    versions: Mapping[str, str]
    device: str
    participants: tuple[str, ...]


class Answered(Section, extra="ignore"):
    """The event of one ask: who was asked, who failed, and what it cost; rounds count from 0."""

    stage: str
    round: int
    task: str
    asked: tuple[str, ...]
    replies: int
    missed: bool = False
    failed: tuple[Failed, ...] = ()
    loss: float | None = None
    monitors: Mapping[str, float] = {}
    figures: Mapping[str, float | None] = {}


class ScreenedSite(Section, extra="ignore"):
    """How many images a simulated participant screened, and how many of them it called novel."""

    site: str
    images: Amount
    flagged: Amount


class ScreenedSites(Section, extra="ignore"):
    """The event of a simulated stage's screening, participant by participant."""

    stage: str
    sites: tuple[ScreenedSite, ...]


class Evaluated(Section, extra="ignore"):
    """The event of one measurement, after ``round`` rounds of a stage."""

    stage: str
    round: int
    headwise: Scores
    joint: Scores


class Warned(Section, extra="ignore"):
    """The event of an alarm."""

    sentence: str


class LedgerLine(Section, extra="ignore"):
    """One message that left a site, and the hash of the line before."""

    site: str
    task: str
    bytes: int
    before: str | None = None


@dataclass(frozen=True)
class RunRecord:
    """A whole run: settings, results, events and ledger; parts that a run did not keep are empty.

    Of lines that say the same stage and round again, after a kill and a resume, the last one stands.
    ``unchained`` is the number of the first ledger line that does not follow from the one before, if any.
    """

    settings: Mapping[str, Any]
    settings_text: str
    results: Results
    started: Started | None
    answered: tuple[Answered, ...]
    evaluated: tuple[Evaluated, ...]
    screened: Mapping[str, tuple[ScreenedSite, ...]]
    warnings: tuple[str, ...]
    resumes: int
    ledger: tuple[LedgerLine, ...]
    unchained: int | None
    tables: Mapping[str, StageTables]
    explained: Mapping[str, Explained]
    split: SplitRecord | None


def read_run(folder: Path) -> RunRecord:
    """The record of a run folder; only its settings and its results must be there."""
    config = folder / "config.toml"
    if not config.exists():
        raise AsterismError("not a run folder: it has no config.toml", where=str(folder), fix="name a run folder")
    results = read_results(folder)
    events = list(_events(folder / "events.jsonl"))
    ledger = folder / "ledger.jsonl"
    lines = _lines(ledger)
    split = folder / "split.json"
    return RunRecord(
        settings=read_toml(config),
        settings_text=config.read_text(encoding="utf-8"),
        results=results,
        started=next((event for event in events if isinstance(event, Started)), None),
        answered=tuple(event for event in events if isinstance(event, Answered)),
        evaluated=tuple(event for event in events if isinstance(event, Evaluated)),
        screened={event.stage: event.sites for event in events if isinstance(event, ScreenedSites)},
        warnings=tuple(dict.fromkeys(event.sentence for event in events if isinstance(event, Warned))),
        resumes=sum(event is None for event in events),
        ledger=tuple(_checked(LedgerLine, line, ledger, n) for n, line in enumerate(lines, start=1)),
        unchained=broken_line(lines),
        tables=_of_stages(StageTables, folder / "tables", results),
        explained=_of_stages(Explained, folder / "explain", results),
        split=_read(SplitRecord, split) if split.exists() else None,
    )


def read_results(folder: Path) -> Results:
    """``results.json`` of a run folder."""
    path = folder / "results.json"
    if not path.exists():
        fix = f"let the run come to its end: asterism resume {folder}"
        raise AsterismError("the run has no results yet", where=str(path), fix=fix)
    return _read(Results, path)


S = TypeVar("S", bound=Section)


def _read(model: type[S], path: Path) -> S:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise AsterismError(f"damaged file: {error}", where=str(path)) from None
    if not isinstance(value, dict):
        raise AsterismError("damaged file: it holds no table", where=str(path))
    return validate(model, value, source=str(path))


def _of_stages(model: type[S], folder: Path, results: Results) -> dict[str, S]:
    """The files named after stages that are there."""
    paths = {stage.name: folder / f"{stage.name}.json" for stage in results.stages}
    return {name: _read(model, path) for name, path in paths.items() if path.exists()}


KINDS: Mapping[str, type[Section]] = {
    "started": Started,
    "answered": Answered,
    "evaluated": Evaluated,
    "screened": ScreenedSites,
    "warned": Warned,
}


def _events(path: Path) -> Iterator[Section | None]:
    """The events a report speaks of, each stage and round once; None stands for a resume."""
    kept: dict[tuple[object, ...], Section | None] = {}
    for number, line in enumerate(_lines(path), start=1):
        table = _table(line, path, number)
        name, stage, round = (table.get(key) for key in ("event", "stage", "round"))
        if name == "resumed":
            kept[name, number] = None
        elif kind := KINDS.get(str(name)):
            # One round may ask for several tasks, so the task is part of what makes a line a repetition.
            place = (name, stage, round, table.get("task"), table.get("sentence"))
            kept[place] = validate(kind, table, source=f"{path}, line {number}")
    yield from kept.values()


def _lines(path: Path) -> list[bytes]:
    """Every whole line of a file; one that a kill cut in half at the end is left out."""
    if not path.exists():
        return []
    *whole, last = path.read_bytes().split(b"\n")
    return [*whole, last] if _parsed(last) is not None else whole


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _table(line: bytes, path: Path, number: int) -> dict[str, Any]:
    table = _parsed(line)
    if table is None:
        fix = "put the file back from a copy, or take the line out"
        raise AsterismError("damaged line", where=f"{path}, line {number}", fix=fix)
    return table


def _checked(model: type[S], line: bytes, path: Path, number: int) -> S:
    return validate(model, _table(line, path, number), source=f"{path}, line {number}")
