"""A budget of time that a suite keeps: it stops before the next round would not fit, where nothing is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from asterism.aggregate import Outcome
from asterism.data.picture import Picture
from asterism.errors import AsterismError
from asterism.flow import Ask
from asterism.runs.driver import Progress

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
SPARE = 1.5  # a round may take this much longer than the one before it


class OutOfTime(Exception):
    """What comes next would not fit into the budget."""


class Budget:
    """Seconds that may be spent, counted from when it is made; without an end where none are given."""

    def __init__(self, seconds: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._end = float("inf") if seconds is None else clock() + seconds
        self.start = 0.0  # longest time from a run's begin to its first order
        self.lasted: dict[str, float] = {}  # by task, how long the last answer to it took

    def require(self, seconds: float) -> None:
        """Raises ``OutOfTime`` where ``seconds`` and something to spare are not left."""
        if self.clock() + SPARE * seconds >= self._end:
            raise OutOfTime


def parse(text: str) -> float:
    """Seconds of ``90s``, ``8m``, ``1.5h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None:
        raise AsterismError(f"{text!r} is no span of time", where="--budget", fix="for example 90s, 8m or 1h")
    return float(match[1]) * UNITS[match[2]]


class Timed:
    """Another progress that also keeps a budget: no order is given that would not be answered in time."""

    def __init__(self, inner: Progress, budget: Budget) -> None:
        self._inner, self._budget = inner, budget
        self._since, self._asked = budget.clock(), 0.0

    def warned(self, sentence: str) -> None:
        """Passes it on."""
        self._inner.warned(sentence)

    def drawn(self, picture: Picture) -> None:
        """Passes it on."""
        self._inner.drawn(picture)

    def stage(self, name: str, rounds: int, done: int) -> None:
        """Passes it on."""
        self._inner.stage(name, rounds, done)

    def asked(self, ask: Ask) -> None:
        """Stops the run where another round would not fit; what was done so far is kept."""
        self._asked = self._budget.clock()
        self._budget.start = max(self._budget.start, self._asked - self._since)
        self._since = float("inf")  # only the first order tells how long a start takes
        self._budget.require(self._budget.lasted.get(ask.task, 0.0))
        self._inner.asked(ask)

    def replied(self, participant: str, outcome: Outcome) -> None:
        """Passes it on."""
        self._inner.replied(participant, outcome)

    def round(self, event: Mapping[str, Any]) -> None:
        """Remembers how long an answer takes."""
        self._budget.lasted[event["task"]] = self._budget.clock() - self._asked
        self._inner.round(event)

    def measured(self, stage: str, round: int, scores: Mapping[str, Any]) -> None:
        """Passes it on."""
        self._inner.measured(stage, round, scores)
