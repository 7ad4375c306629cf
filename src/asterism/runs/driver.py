"""The driver: everything around a flow that the flow must not know — time, events, missed rounds, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from asterism.aggregate import Outcome
from asterism.data.picture import Picture
from asterism.errors import AsterismError
from asterism.files import Lines, now
from asterism.flow import Answer, Ask, State, Tensors, Total
from asterism.metrics import forgetting
from asterism.runs.replay import Recorder
from asterism.runs.store import RunFolder

Scores = Mapping[str, Any]
Figures = Callable[[Ask, Total], Mapping[str, float | None]]
TOLD = ("steps", "images", "loss", "samples")  # amounts that an event has a place for


class Fleet(Protocol):
    """Whatever answers asks: this process, real sites, or a stored run."""

    def answer(self, ask: Ask) -> Answer:
        """What the participants answer, failures included."""


class Progress(Protocol):
    """Where a run tells how far it is."""

    def warned(self, sentence: str) -> None:
        """Something the user should know, though the run goes on."""

    def drawn(self, picture: Picture) -> None:
        """It is settled who holds which image of a stage."""

    def stage(self, name: str, rounds: int, done: int) -> None:
        """A stage begins, or goes on after ``done`` rounds."""

    def asked(self, ask: Ask) -> None:
        """Participants begin to work on an ask."""

    def replied(self, participant: str, outcome: Outcome) -> None:
        """One participant answered or failed."""

    def round(self, event: Mapping[str, Any]) -> None:
        """An ask was answered."""

    def measured(self, stage: str, round: int, scores: Scores) -> None:
        """A state was measured on the test images."""


@dataclass
class Account:
    """What the driver itself must remember over a cut; it is kept with every state, so it holds no measured time."""

    step: int = 0
    images: int = 0  # trained on in this stage
    missed: int = 0  # rounds in a row
    stages: list[dict[str, Any]] = field(default_factory=list)  # results of the stages that are done
    history: list[list[float | None]] = field(
        default_factory=list
    )  # after each stage, accuracy on every stage's classes

    def as_json(self) -> dict[str, Any]:
        """Everything but the step, which the checkpoint has itself."""
        return {name: value for name, value in vars(self).items() if name != "step"}


@dataclass
class Driver:
    """Runs flows over a fleet and keeps what they yield in a run folder."""

    folder: RunFolder
    fleet: Fleet
    measure: Callable[[State], Scores]
    progress: Progress
    quorum: int = 1
    patience: int = 3
    evaluate_every: int = 1
    keep_every: bool = False
    apart: float = 0.0  # least seconds between two states that are kept within a stage
    recorder: Recorder | None = None
    record_totals: bool = False
    alarm: Callable[[Mapping[str, float]], str | None] = lambda monitors: None
    figures: Mapping[str, Figures] = field(default_factory=dict)  # by task, what its total comes to beside amounts
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        self._events = Lines(self.folder.path / "events.jsonl")
        self._seconds = seconds_spent(self._events)
        self._since = time.monotonic()
        self._alarmed = False
        self._measured: tuple[str, int, Scores] | None = None
        self._waiting: State | None = None  # a state that is not kept yet

    def event(self, name: str, **facts: Any) -> None:
        """Appends one line to ``events.jsonl``."""
        self._events.append({"at": now(), "event": name, **facts})

    def ask(self, ask: Ask) -> Answer:
        """The fleet's answer; below the quorum a total reads as nothing, and too many such rounds stop the run."""
        self._begin(ask)
        started = time.monotonic()
        answer = self.fleet.answer(ask)
        self._waiting = None  # participants have moved on from it
        if self.recorder is not None and (self.record_totals or not isinstance(answer, Total)):
            self.recorder.record(ask, answer)
        replies = answer.replies if isinstance(answer, Total) else len(answer.replies)
        missed = replies < self.quorum
        told = _answered(ask, answer, replies, missed, time.monotonic() - started)
        if isinstance(answer, Total) and ask.task in self.figures:
            told["figures"] = dict(self.figures[ask.task](ask, answer))
        self.event("answered", **told)
        self.progress.round(told)
        self._sound(told["monitors"])
        self.account.images += int(told["images"])
        self.account.missed = self.account.missed + 1 if missed else 0
        if self.account.missed >= self.patience or (missed and not isinstance(answer, Total)):
            raise _no_quorum(ask, answer, self.account.missed, self.quorum)
        if missed and isinstance(answer, Total):
            return replace(answer, tensors={}, weight=0.0, contributors=0)
        return answer

    def _begin(self, ask: Ask) -> None:
        """Tells of an ask. A run that is stopped here, between two rounds, loses nothing of what was done."""
        try:
            self.progress.asked(ask)
        except BaseException:
            if self._waiting is not None:
                self._write(self._waiting)
            raise

    def _sound(self, monitors: Mapping[str, float]) -> None:
        """Tells an alarm of the algorithm, once a run."""
        sentence = None if self._alarmed else self.alarm(monitors)
        if sentence is not None:
            self._alarmed = True
            self.event("warned", sentence=sentence)
            self.progress.warned(sentence)

    def keep(self, state: State) -> None:
        """Keeps a state as the newest checkpoint if the last is old enough, and measures it when its round is due."""
        if self.evaluate_every and state.round % self.evaluate_every == 0:
            self.evaluate(state)
        self.account.step += 1
        self._waiting = state
        if time.monotonic() - self._since >= self.apart:
            self._write(state)

    def finish(self, state: State, *, true: int | None, estimated: int | None, by_stage: list[float | None]) -> None:
        """Ends a stage: measures its last state, adds its results, keeps both.

        ``by_stage`` is the accuracy on the classes of every stage so far, from which forgetting is told.
        """
        scores = self.evaluate(state)
        if self._waiting is not None:  # so that the seconds are on record before the stage counts as done
            self._write(self._waiting)
        self.account.history.append(by_stage)
        done = {
            "name": state.stage,
            "rounds": state.round,
            "images": self.account.images,
            "true": true,
            "estimated": estimated,
            **scores,
            "forgetting": forgetting(self.account.history).mean,
        }
        self.account.stages.append(done)
        self.account.images = 0
        self.account.step += 1
        self._write(state)
        self.event("stage_finished", stage=state.stage, seconds=self._seconds[state.stage], images=done["images"])

    def results(self) -> list[dict[str, Any]]:
        """The results of every stage that is done, with the seconds it took."""
        return [{**done, "seconds": round(self._seconds[done["name"]], 3)} for done in self.account.stages]

    def evaluate(self, state: State) -> Scores:
        """The scores of a state, measured once: a stage's end may be the round that was measured just before."""
        if self._measured is not None and self._measured[:2] == (state.stage, state.round):
            return self._measured[2]
        scores = self.measure(state)
        self._measured = state.stage, state.round, scores
        self.event("evaluated", stage=state.stage, round=state.round, **scores)
        self.progress.measured(state.stage, state.round, scores)
        return scores

    def _write(self, state: State) -> Path:
        self._waiting = None
        instant = time.monotonic()
        self._seconds[state.stage] = self._seconds.get(state.stage, 0.0) + instant - self._since
        self._since = instant
        file = self.folder.keep(self.account.step, state, self.account.as_json(), every=self.keep_every)
        relative = file.relative_to(self.folder.path).as_posix()
        self.event("kept", stage=state.stage, round=state.round, file=relative, seconds=self._seconds[state.stage])
        return file


def seconds_spent(events: Lines) -> dict[str, float]:
    """Seconds by stage that earlier sittings of a run took, up to the last state each kept."""
    return {line["stage"]: line["seconds"] for line in events if line["event"] == "kept"}


def _answered(ask: Ask, answer: Answer, replies: int, missed: bool, seconds: float) -> dict[str, Any]:
    if isinstance(answer, Total):
        amounts: Mapping[str, float] = answer.metrics
        up = _bytes(answer.tensors) * answer.contributors
    else:
        every = list(answer.replies.values())
        names = dict.fromkeys(name for reply in every for name in reply.metrics)
        amounts = {name: sum(reply.metrics.get(name, 0.0) for reply in every) for name in names}
        up = sum(_bytes(reply.tensors) for reply in every)
    steps = amounts.get("steps", 0.0)
    return {
        "stage": ask.version.stage,
        "round": ask.version.round,
        "task": ask.task,
        "asked": list(ask.participants),
        "replies": replies,
        "missed": missed,
        "failed": [vars(failure) for failure in answer.failures],
        "seconds": round(seconds, 4),
        "images": int(amounts["images"]) if steps else 0,
        "loss": amounts["loss"] / steps if steps else None,
        # Amounts that training sums over its steps are told as means, all others as they are.
        "monitors": {name: value / (steps or 1) for name, value in amounts.items() if name not in TOLD},
        "bytes_up": up,
        "bytes_down": _bytes(ask.tensors) * len(ask.participants),
    }


def _bytes(tensors: Tensors) -> int:
    return sum(value.nbytes for value in tensors.values())


def _no_quorum(ask: Ask, answer: Answer, missed: int, quorum: int) -> AsterismError:
    reasons = [f"{f.participant}: {f.reason}, {f.detail}" for f in answer.failures] or ["no participant answered"]
    return AsterismError(
        f"{missed} rounds in a row had fewer than {quorum} replies; the last said {reasons[0]}",
        where=f"round {ask.version.round + 1} of stage {ask.version.stage}",
        fix="mend the cause and resume the run; every reason is in events.jsonl",
    )
