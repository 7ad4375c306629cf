"""What is kept of a run in a suite: one small JSON file with its figures, its settings and its circumstances."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asterism.config import Section, validate
from asterism.files import Lines, write_text
from asterism.metrics import Scores
from asterism.report.read import StageResults
from asterism.suite.identity import decisive, decisive_for_known, digest, fits
from asterism.suite.plan import Place, Planned

PROTOCOLS = ("headwise", "joint")
PARTS = ("known", "novel", "all")


class Moment(Section):
    """Accuracies under both protocols at one moment."""

    headwise: Scores
    joint: Scores


class Record(Section):
    """One run of a suite. ``failed`` is the sentence it failed with; its figures are then missing."""

    format: Literal[1] = 1
    suite: str
    dataset: str
    setting: str = ""
    row: str
    seed: int
    settings: Mapping[str, Any]
    origin: str = ""  # digest of the settings that decided m^L, which other runs share
    machine: Mapping[str, Any] = {}
    failed: str = ""
    stages: tuple[StageResults, ...] = ()
    starts: Mapping[str, Moment] = {}  # by novel stage, before its first round
    curves: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {}  # by stage: round and accuracies
    unusable: Mapping[str, int] = {}  # replies that failed or were refused, by stage
    overhead: float = 0.0  # seconds that the novel stages' own do not hold: loading, estimates, report

    @property
    def place(self) -> Place:
        """Where it stands in its table."""
        return Place(self.dataset, self.setting, self.row, self.seed)

    def stage(self, name: str) -> StageResults | None:
        """The figures of a stage."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def known_seconds(self) -> float:
        """What its known stage took, whoever trained it."""
        return sum(stage.seconds for stage in self.stages if stage.name == "known")

    @property
    def seconds(self) -> float:
        """What the run took beside its known stage, which others share."""
        return self.overhead + sum(stage.seconds for stage in self.stages if stage.name != "known")


def measured(suite: str, planned: Planned, folder: Path, machine: Mapping[str, Any], overhead: float) -> Record:
    """The record of a run that has come to its end."""
    place = planned.place
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    tables: dict[str, Any] = {
        "suite": suite, **vars(place), "settings": decisive(planned), "machine": dict(machine),
        "origin": digest(decisive_for_known(planned)), "stages": results["stages"], "overhead": round(overhead, 2),
        **_events(folder),
    }  # fmt: skip
    return validate(Record, tables, source=str(folder))


def failure(suite: str, planned: Planned, machine: Mapping[str, Any], sentence: str) -> Record:
    """The record of a run that failed."""
    return Record(suite=suite, **vars(planned.place), settings=decisive(planned), machine=machine, failed=sentence)


def _events(folder: Path) -> dict[str, Any]:
    """Accuracies over the rounds of each stage and before the first of novel ones, and how many replies were lost."""
    curves: dict[str, dict[int, dict[str, float | None]]] = {}
    starts, unusable = {}, dict[str, int]()
    for event in Lines(folder / "events.jsonl"):
        if event["event"] == "answered" and event["failed"]:
            unusable[event["stage"]] = unusable.get(event["stage"], 0) + len(event["failed"])
        if event["event"] != "evaluated":
            continue
        if event["round"] == 0:
            starts[event["stage"]] = {protocol: event[protocol] for protocol in PROTOCOLS}
        figures = {f"{p}.{part}": _rounded(event[p][part]) for p in PROTOCOLS for part in PARTS}
        curves.setdefault(event["stage"], {})[event["round"]] = figures
    columns = {stage: _columns(rounds) for stage, rounds in curves.items()}
    return {"starts": starts, "curves": columns, "unusable": unusable}


def _columns(rounds: Mapping[int, Mapping[str, float | None]]) -> dict[str, list[float | None]]:
    names = next(iter(rounds.values()))
    found: dict[str, list[float | None]] = {"round": [*rounds]}
    return found | {name: [figures[name] for figures in rounds.values()] for name in names}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def keep(record: Record, planned: Planned, results: Path) -> Path:
    """The file of a record, below the folder of results; another one of the same run is replaced."""
    place = planned.place
    name = "-".join(part for part in (place.dataset, place.setting, place.row) if part)
    # Runs of a place under other settings than the table's lie beside them, told apart by a digest.
    file = results / record.suite / f"{name}-{place.seed}-{digest(decisive(planned, changed=True))}.json"
    write_text(file, _lines(record))
    return file


def _lines(record: Record) -> str:
    """JSON with one line for each entry, so that a change of a file can be read."""
    tables = record.model_dump(mode="json", exclude_defaults=True) | {"format": 1}
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tables.items()) + "\n}\n"


@dataclass(frozen=True)
class Found:
    """Every record below a folder of results."""

    records: tuple[Record, ...]

    def of(self, planned: Planned) -> Record | None:
        """A record of this very run, whichever suite made it; one that succeeded before one that failed."""
        now, changed = decisive(planned), decisive(planned, changed=True)
        fitting = (r for r in self.records if r.seed == planned.place.seed and fits(r.settings, now, changed))
        return min(fitting, key=lambda record: bool(record.failed), default=None)


def read_records(results: Path) -> Found:
    """The records below a folder of results; other JSON files there are none of ours."""
    return Found(tuple(_records(sorted(results.glob("*/*.json")))))


def _records(files: Iterable[Path]) -> Iterator[Record]:
    for file in files:
        tables = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(tables, dict) and {"format", "suite", "row", "settings"} <= tables.keys():
            yield validate(Record, tables, source=str(file))


def over_seeds(found: Found, plans: Sequence[Planned]) -> dict[tuple[str, str], list[Record]]:
    """Records by group of columns and row, one for every seed that was run."""
    cells: dict[tuple[str, str], list[Record]] = {}
    for plan in plans:
        record = found.of(plan)
        cells.setdefault((plan.place.group, plan.place.row), []).extend([record] if record is not None else [])
    return cells
