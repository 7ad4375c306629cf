"""How a run tells how far it is: a live bar in a terminal, plain lines in a pipe, nothing for machines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from asterism.aggregate import Outcome
from asterism.data.picture import Picture
from asterism.flow import Ask, Failure


class Silent:
    """Tells nothing."""

    def warned(self, sentence: str) -> None:
        """Nothing."""

    def drawn(self, picture: Picture) -> None:
        """Nothing."""

    def stage(self, name: str, rounds: int, done: int) -> None:
        """Nothing."""

    def asked(self, ask: Ask) -> None:
        """Nothing."""

    def replied(self, participant: str, outcome: Outcome) -> None:
        """Nothing."""

    def round(self, event: Mapping[str, Any]) -> None:
        """Nothing."""

    def measured(self, stage: str, round: int, scores: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain(Silent):
    """One line a round, for pipes and log files."""

    def __init__(self) -> None:
        self._rounds, self._first, self._begun = 0, 0, time.monotonic()

    def stage(self, name: str, rounds: int, done: int) -> None:
        """Remembers what an ETA needs."""
        self._rounds, self._first, self._begun = rounds, done, time.monotonic()

    def round(self, event: Mapping[str, Any]) -> None:
        """Says what a round did, and when the stage should end."""
        if event["loss"] is None:
            self._say(f"{event['stage']} {event['task']}: {event['replies']} of {len(event['asked'])} participants")
            return
        done = event["round"] + 1
        elapsed = time.monotonic() - self._begun
        left = elapsed / max(1, done - self._first) * (self._rounds - done)
        words = [
            f"{event['stage']} round {done}/{self._rounds}",
            f"{event['replies']} of {len(event['asked'])} clients",
        ]
        words += [f"loss {event['loss']:.3f}"] if event["loss"] is not None else []
        words += [f"{_rate(event):,.0f} images/s", f"{left:.0f} s left"]
        self._say("  ".join(words))
        for failure in event["failed"]:
            self.warned(_failed(failure))

    def measured(self, stage: str, round: int, scores: Mapping[str, Any]) -> None:
        """Says the accuracies of a state."""
        self._say(f"{stage} after round {round}: {accuracies(scores)}")

    def warned(self, sentence: str) -> None:
        """Says a warning."""
        self._say(f"warning: {sentence}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class Live(Silent):
    """A bar of rounds and a bar of the round's clients, with images per second and the time left."""

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(*columns, console=console)
        self._rounds: TaskID | None = None
        self._clients: TaskID | None = None
        self._rate, self._scores = "", ""

    def drawn(self, picture: Picture) -> None:
        """Shows who holds what, before anything is trained."""
        self._bar.console.print(picture)

    def stage(self, name: str, rounds: int, done: int) -> None:
        """A new bar for the stage."""
        self._bar.start()
        self._rounds = self._bar.add_task(f"[bold]{name}[/] rounds", total=rounds, completed=done, note="")
        self._clients = self._bar.add_task("clients", total=None, note="")

    def asked(self, ask: Ask) -> None:
        """Starts the bar of the round's clients again."""
        if self._clients is not None:
            self._bar.reset(self._clients, total=len(ask.participants))

    def replied(self, participant: str, outcome: Outcome) -> None:
        """One client more; a failure is said above the bar."""
        if self._clients is not None:
            self._bar.advance(self._clients)
        if isinstance(outcome, Failure):
            self.warned(_failed(vars(outcome)))

    def round(self, event: Mapping[str, Any]) -> None:
        """One round more."""
        self._rate = f"{_rate(event):,.0f} images/s"
        self._note(event["round"] + 1)

    def measured(self, stage: str, round: int, scores: Mapping[str, Any]) -> None:
        """Shows the accuracies beside the bar."""
        self._scores = accuracies(scores)
        self._note(round)

    def warned(self, sentence: str) -> None:
        """Says a warning above the bar."""
        self._bar.console.print(f"warning: {sentence}", style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._bar.stop()

    def _note(self, done: int) -> None:
        if self._rounds is not None:
            self._bar.update(self._rounds, completed=done, note=f"{self._rate}  {self._scores}")


Teller = Silent | Plain | Live


def teller(*, quiet: bool) -> Teller:
    """The way of telling that fits standard error: live in a terminal, plain in a pipe, silent when asked."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Plain()


def accuracies(scores: Mapping[str, Any]) -> str:
    """The headwise accuracies that exist, in words."""
    measured = scores["headwise"]
    names = ["known"] if measured["novel"] is None else list(measured)
    return "  ".join(f"{name} {measured[name]:.1f}%" for name in names)


def _rate(event: Mapping[str, Any]) -> float:
    return float(event["images"] / event["seconds"]) if event["seconds"] else 0.0


def _failed(failure: Mapping[str, Any]) -> str:
    return f"{failure['participant']} failed: {failure['reason']}, {failure['detail']}"
