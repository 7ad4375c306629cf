"""A suite file and what it expands into: one run for every dataset, setting, row and seed.

A suite says of a table of the paper which built-in configuration each of its columns starts from and which settings
each of its rows changes. Later changes win: those of the suite, of the dataset, of the setting, of the row, and of
the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asterism.config import Section, read_toml, validate
from asterism.data.benchmarks import BENCHMARKS
from asterism.errors import AsterismError
from asterism.experiment import Experiment, load

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Changes = Mapping[str, Any]  # settings by dotted key
APART = "machine.apart=10"  # a cut costs so many seconds and a round; writing every state, a tenth of a GPU's stage


class Source(Section):
    """A column of a table: images, and the configuration that its runs start from."""

    name: Name
    title: str = ""
    config: str = ""  # a built-in configuration; the one called as the dataset where not given
    set: Mapping[str, Any] = {}
    images: Annotated[float, Field(gt=0)] = 500  # training images a class, for the plan alone

    @property
    def shown(self) -> str:
        """The title, or that of the benchmark."""
        return self.title or (BENCHMARKS[self.name].title if self.name in BENCHMARKS else self.name)


class Choice(Section):
    """A row of a table, or a setting that heads a group of columns."""

    name: Name
    title: str = ""
    set: Mapping[str, Any] = {}
    datasets: tuple[str, ...] = ()  # only these; all where not given
    x: float | None = None  # where a figure draws it along its axis
    departures: tuple[str, ...] = ()  # headings of docs/departures.md that can explain a difference

    @property
    def shown(self) -> str:
        """The title, or the name."""
        return self.title or self.name

    def covers(self, dataset: str) -> bool:
        """Whether the choice is made for a dataset."""
        return not self.datasets or dataset in self.datasets


class Suite(Section):
    """One table of the paper."""

    name: Name
    title: str
    paper: str = ""  # a file of printed numbers (asterism/paper); empty: the paper prints none
    note: str = ""  # what a reader of the table should know
    departures: tuple[str, ...] = ()  # of every row
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (2023, 2024, 2025)
    stages: tuple[str, ...] = ("novel-1",)  # whose ends the table tells
    moment: Literal["end", "start"] = "end"  # start: before a stage's first round
    # What m^L is trained under: the setting itself, or the dataset alone, as the paper evidently did.
    known: Literal["setting", "dataset"] = "setting"
    figure: Literal["", "bars", "curve", "count"] = ""
    axis: str = ""  # what x means in that figure
    set: Mapping[str, Any] = {}
    datasets: Annotated[tuple[Source, ...], Field(min_length=1)]
    settings: tuple[Choice, ...] = ()
    rows: Annotated[tuple[Choice, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_told_apart(self) -> Suite:
        for kind, found in (("datasets", self.datasets), ("settings", self.settings), ("rows", self.rows)):
            names = [choice.name for choice in found]
            if len(set(names)) < len(names):
                raise ValueError(f"two {kind} have the same name")
        return self

    def dataset(self, name: str) -> Source:
        """The dataset of a name."""
        return next(dataset for dataset in self.datasets if dataset.name == name)

    def row(self, name: str) -> Choice:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)

    def setting(self, name: str) -> Choice:
        """The setting of a name; the empty one changes nothing."""
        return next((setting for setting in self.settings if setting.name == name), Choice(name="none"))

    def shown(self, group: str) -> str:
        """The title of a group of columns."""
        dataset, _, setting = group.partition("/")
        return self.dataset(dataset).shown + (f", {self.setting(setting).shown}" if setting else "")


@dataclass(frozen=True)
class Place:
    """One cell's place in a table, for one seed."""

    dataset: str
    setting: str  # empty where the suite has no settings
    row: str
    seed: int

    @property
    def group(self) -> str:
        """The group of columns: the dataset, and the setting where there are several."""
        return f"{self.dataset}/{self.setting}" if self.setting else self.dataset

    @property
    def label(self) -> str:
        """The place in words of one line."""
        return f"{self.group} {self.row} seed {self.seed}"


@dataclass(frozen=True)
class Planned:
    """One run: what it does, and what its known stage is trained under."""

    place: Place
    experiment: Experiment
    known: Experiment  # of one stage


def read_suite(path: Path) -> Suite:
    """The suite in a TOML file; its name is the file's."""
    return validate(Suite, {"name": path.stem, **read_toml(path)}, source=str(path))


def places(
    suite: Suite, *, only: Sequence[str] = (), seeds: Sequence[int] = (), datasets: Sequence[str] = ()
) -> tuple[Place, ...]:
    """The chosen places of a suite, seed by seed, so that a table cut short is whole for its first seeds."""
    _require_known(suite, only, datasets)
    return tuple(
        Place(dataset, setting, row.name, seed)
        for seed in seeds or suite.seeds
        for dataset, setting in groups(suite)
        for row in suite.rows
        if row.covers(dataset)
        and (not only or row.name in only)
        and (not datasets or dataset in datasets)
    )  # fmt: skip


def groups(suite: Suite) -> Iterator[tuple[str, str]]:
    """Dataset and setting of each group of columns."""
    for dataset in suite.datasets:
        if not suite.settings:
            yield dataset.name, ""
        for setting in suite.settings:
            if setting.covers(dataset.name):
                yield dataset.name, setting.name


def _require_known(suite: Suite, only: Sequence[str], datasets: Sequence[str]) -> None:
    rows = [row.name for row in suite.rows]
    names = [dataset.name for dataset in suite.datasets]
    for kind, asked, there in (("row", only, rows), ("dataset", datasets, names)):
        for name in asked:
            if name not in there:
                raise AsterismError(f"{suite.name} has no {kind} {name!r}", fix=f"one of {', '.join(there)}")


def planned(suite: Suite, place: Place, overrides: Sequence[str] = ()) -> Planned:
    """The run of a place, every setting resolved."""
    dataset, setting, row = suite.dataset(place.dataset), suite.setting(place.setting), suite.row(place.row)
    config = dataset.config or dataset.name
    name = "-".join(part for part in (suite.name, place.dataset, place.setting, place.row) if part)
    last = [f"name={inline(name)}", f"seed={place.seed}", *overrides]
    whole = [suite.set, dataset.set, setting.set, row.set]
    shared = whole if suite.known == "setting" else [suite.set, dataset.set, row.set]
    return Planned(
        place,
        load(config, [APART, *assignments(whole), *last]),
        known_part(load(config, [APART, *assignments(shared), *last])),
    )


def known_part(experiment: Experiment) -> Experiment:
    """The experiment's known stage alone, under a name of its own."""
    split = experiment.split.model_copy(update={"novel": ()})
    return experiment.model_copy(update={"name": "known", "split": split, "novel": (), "seeds": ()})


def assignments(changes: Sequence[Changes]) -> list[str]:
    """Settings as the command line would give them."""
    return [f"{key}={inline(value)}" for changed in changes for key, value in changed.items()]


def inline(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def sentence(error: Exception) -> str:
    """An error in one line, with the place that it names."""
    if not isinstance(error, AsterismError):
        return f"{type(error).__name__}: {error}"
    return f"{error.what} ({error.where})" if error.where else error.what
