from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from asterism.runs.driver import Progress
from asterism.suite.budget import Budget
from asterism.suite.plan import Place, Suite, places, read_suite
from asterism.suite.run import Outcome, Quiet, Runner

TINY = """
title = "Tiny"
paper = "main"
seeds = [2023, 2024]
departures = ["Augmentation"]

[set]
"known.rounds" = 2
"novel.0.rounds" = 3
"train.local_epochs" = 1
"split.alpha" = 1.0
"split.participants" = 4
"federation.clients" = 2
"machine.device" = "cpu"

[[datasets]]
name = "cifar100"
config = "demo"
images = 135

[[rows]]
name = "gal"
title = "GAL"
set = { "novel.0.algorithm" = { name = "gal" } }

[[rows]]
name = "gal-without-init"
set = { "novel.0.discovery.initial" = "random" }
"""
FAILING = """
[[rows]]
name = "nobody"
set = { "novel.0.screening" = { filter = true, threshold = -0.99 } }

[[rows]]
name = "refused"
set = { "novel.0.algorithm" = { name = "telepathy" } }
"""


def read(folder: Path, text: str, name: str = "tiny") -> Suite:
    """The suite of a text."""
    file = folder / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return read_suite(file)


@pytest.fixture
def tiny(tmp_path: Path) -> Suite:
    """Two rows on the digits, each a run of a second."""
    return read(tmp_path, TINY)


class Watching(Quiet):
    """Notes which runs begin, and gives each a progress of the test's own."""

    def __init__(self, inside: Callable[[], Progress] | None = None) -> None:
        self.labels: list[str] = []
        self._inside = inside

    def begun(self, place: Place, number: int, of: int) -> Progress:
        self.labels.append(place.label)
        return super().begun(place, number, of) if self._inside is None else self._inside()


def make(
    suite: Suite, folder: Path, *, seeds: tuple[int, ...] = (2023,), budget: Budget | None = None,
    teller: Quiet | None = None,
) -> Outcome:  # fmt: skip
    """Makes the runs of a suite in ``folder``."""
    runner = Runner(suite, folder / "results", folder / "work", budget or Budget(), teller or Quiet())
    return runner.run(places(suite, seeds=seeds))
