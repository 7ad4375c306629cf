"""Several runs in one table: equal names are seeds of one experiment, shown as mean ± sample standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from asterism.metrics import count_error, mean_and_deviation
from asterism.report.read import Results, StageResults
from asterism.report.words import spread

Measure: TypeAlias = Callable[[StageResults], float | None]

MEASURES: Mapping[str, Measure] = {
    "headwise.known": lambda stage: stage.headwise.known,
    "headwise.novel": lambda stage: stage.headwise.novel,
    "headwise.all": lambda stage: stage.headwise.all,
    "joint.known": lambda stage: stage.joint.known,
    "joint.novel": lambda stage: stage.joint.novel,
    "joint.all": lambda stage: stage.joint.all,
    "nmi": lambda stage: stage.nmi,
    "ari": lambda stage: stage.ari,
    "forgetting": lambda stage: stage.forgetting,
    "true": lambda stage: None if stage.estimated is None else stage.true,
    "estimated": lambda stage: stage.estimated,
    "count_error": lambda stage: None if stage.estimated is None else count_error(stage.true, stage.estimated),
    "rounds": lambda stage: stage.rounds,
    "seconds": lambda stage: stage.seconds,
    "images_per_second": lambda stage: stage.images / stage.seconds if stage.seconds > 0 else None,
}
ACCURACIES = tuple(name for name in MEASURES if name.startswith(("headwise", "joint")))
OTHERS = tuple(name for name in MEASURES if name not in ACCURACIES)
TITLES = {
    "true": "true count",
    "nmi": "NMI",
    "ari": "ARI",
    "count_error": "count error (%)",
    "images_per_second": "images / s",
}
WHOLE = frozenset({"rounds", "images_per_second"})


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over ``seeds`` values; one value has no deviation."""

    mean: float
    deviation: float | None
    seeds: int

    def words(self, digits: int = 1) -> str:
        """``95.1 ± 0.4``."""
        return spread(self.mean, self.deviation, digits)


@dataclass(frozen=True)
class Row:
    """One stage of one experiment over its seeds; ``measures`` holds only what at least one seed measured."""

    run: str
    stage: str
    seeds: tuple[int, ...]
    measures: Mapping[str, Spread]

    def words(self, measure: str) -> str:
        """A measure as a cell of a table, a dash where nobody measured it."""
        found = self.measures.get(measure)
        return spread(None, None) if found is None else found.words(0 if measure in WHOLE else 1)


def experiments(results: Iterable[Results]) -> dict[str, dict[int, Results]]:
    """Results by experiment and seed, in the order given.

    A name that comes again with a seed it already has is no further seed: it opens ``name (2)``.
    """
    groups: dict[str, dict[int, Results]] = {}
    for result in results:
        name, again = result.run, 1
        while result.seed in groups.setdefault(name, {}):
            again += 1
            name = f"{result.run} ({again})"
        groups[name][result.seed] = result
    return groups


def comparison(results: Iterable[Results]) -> tuple[Row, ...]:
    """One row per experiment and stage."""
    rows = []
    for run, by_seed in experiments(results).items():
        names = dict.fromkeys(stage.name for result in by_seed.values() for stage in result.stages)
        for name in names:
            stages = {seed: stage for seed, result in by_seed.items() for stage in result.stages if stage.name == name}
            rows.append(Row(run, name, tuple(stages), _measured(tuple(stages.values()))))
    return tuple(rows)


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """The rows as plain values; a measure that nobody took is null."""
    return [
        {
            "run": row.run,
            "stage": row.stage,
            "seeds": list(row.seeds),
            **{name: _plain(row.measures.get(name)) for name in MEASURES},
        }
        for row in rows
    ]


def used(rows: Sequence[Row], measures: Iterable[str] = MEASURES) -> list[str]:
    """Those measures that at least one row has."""
    return [name for name in measures if any(name in row.measures for row in rows)]


def title(measure: str) -> str:
    """A measure's name in a table."""
    return TITLES.get(measure, measure.replace(".", " "))


def results_table(results: Iterable[Results]) -> Table:
    """The comparison as a table for a terminal: a row per measure, a column per experiment and stage.

    Laid out this way two runs fit into 80 columns, and a name of any width is folded rather than cut.
    """
    rows = comparison(results)
    table = Table(caption=_caption(rows), caption_justify="left", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(Text(f"{row.run}\n{row.stage}"), justify="right", overflow="fold")
    for measure in used(rows):
        table.add_row(title(measure), *(row.words(measure) for row in rows))
    table.add_row("seeds", *(", ".join(map(str, row.seeds)) for row in rows))
    return table


def _measured(stages: Sequence[StageResults]) -> dict[str, Spread]:
    found = {name: [measure(stage) for stage in stages] for name, measure in MEASURES.items()}
    values = {name: [v for v in measured if v is not None] for name, measured in found.items()}
    return {name: Spread(*mean_and_deviation(v), len(v)) for name, v in values.items() if v}


def _plain(found: Spread | None) -> dict[str, float | int | None] | None:
    return None if found is None else {"mean": found.mean, "std": found.deviation, "seeds": found.seeds}


def _caption(rows: Sequence[Row]) -> str:
    words = "accuracies in percent, after the last round"
    several = any(len(row.seeds) > 1 for row in rows)
    return words + ("; mean ± sample standard deviation over seeds" if several else "")
