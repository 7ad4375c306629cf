"""The numbers that the paper prints, one file for each of its tables, and which of them do not fit one another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from asterism.config import read_toml
from asterism.errors import AsterismError

PRINTED = resources.files("asterism") / "paper"
ROUNDING = 0.35  # points by which "all" may miss the weighted mean of two rounded numbers and a mean over seeds


@dataclass(frozen=True)
class Number:
    """A printed mean, and the standard deviation behind its ±."""

    mean: float
    deviation: float | None = None


Cell = Mapping[str, Number]  # by "known", "novel", "all", "estimated"


@dataclass(frozen=True)
class Printed:
    """A table of the paper: cells by stage, group of columns and row."""

    label: str
    cells: Mapping[tuple[str, str, str], Cell]
    classes: Mapping[tuple[str, str], tuple[int, int]]  # by stage and group: known and novel ones
    average_error: Mapping[str, float]  # of estimated class numbers, in percent, by row

    def cell(self, stage: str, group: str, row: str) -> Cell:
        """What is printed at a place; nothing where the paper has no such cell.

        A table of one setting names its groups by their datasets alone.
        """
        dataset = group.partition("/")[0]
        return self.cells.get((stage, group, row), self.cells.get((stage, dataset, row), {}))

    def ill_fitting(self) -> dict[tuple[str, str, str], float]:
        """Cells whose "all" is not the class-count mean of "known" and "novel", and by how much they miss it."""
        missed = {}
        for place, cell in self.cells.items():
            weights = self.classes.get(place[:2])
            if weights is None or "all" not in cell:
                continue
            known, novel = weights
            due = (known * cell["known"].mean + novel * cell["novel"].mean) / (known + novel)
            if abs(cell["all"].mean - due) > ROUNDING:
                missed[place] = round(cell["all"].mean - due, 2)
        return missed


NOTHING = Printed("", {}, {}, {})


def names() -> list[str]:
    """The tables there are."""
    return sorted(file.name.removesuffix(".toml") for file in PRINTED.iterdir() if file.name.endswith(".toml"))


def printed(name: str) -> Printed:
    """A table of the paper by name; an empty one for an empty name."""
    if not name:
        return NOTHING
    if name not in names():
        raise AsterismError(f"no printed table {name!r}", where="paper", fix=f"one of {', '.join(names())}")
    tables = read_toml(Path(str(PRINTED / f"{name}.toml")))
    stages = {stage: groups for stage, groups in tables.items() if stage == "start" or stage.startswith("novel-")}
    variances = tables.get("spread") == "variance"
    cells = {
        (stage, group, row): {measure: _number(value, variances) for measure, value in cell.items()}
        for stage, groups in stages.items()
        for group, rows in groups.items()
        for row, cell in rows.items()
    }
    return Printed(tables["label"], cells, _classes(tables.get("classes", {}), stages), tables.get("average_error", {}))


def _number(value: float | list[float], variances: bool) -> Number:
    if not isinstance(value, list):
        return Number(value)
    mean, spread = value
    return Number(mean, math.sqrt(spread) if variances else spread)


def _classes(tables: Mapping[str, Any], stages: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """Class counts by stage and group; given once for all stages, or stage by stage."""
    by_stage = tables if set(tables) <= set(stages) else dict.fromkeys(stages, tables)
    return {
        (stage, group): (known, novel) for stage, groups in by_stage.items() for group, (known, novel) in groups.items()
    }
