"""Brings the runs of a suite to their ends, one after the other, within a budget of time.

A run that is done is not made again; one that was cut goes on where it stopped; one that fails leaves a sentence in
its place, and the others go on. One process makes all of them: participants share its GPU, and kernels
made for one run serve the next.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from asterism.data.settings import Images
from asterism.data.sources import DIGITS, Loaded, locate
from asterism.data.sources import load as load_images
from asterism.errors import AsterismError
from asterism.files import Lines
from asterism.runs.driver import Progress, seconds_spent
from asterism.runs.execute import commit, execute, versions
from asterism.runs.progress import Silent
from asterism.suite.budget import Budget, OutOfTime, Timed
from asterism.suite.known import begun, known_folder, trained
from asterism.suite.plan import Place, Planned, Suite, planned, sentence
from asterism.suite.records import Found, failure, keep, measured, read_records

PROGRAMS = 128  # variants of one compiled function


class Teller(Protocol):
    """Where a suite tells how far it is."""

    def begun(self, place: Place, number: int, of: int) -> Progress:
        """A run begins; gives where it tells of itself."""

    def ended(self, place: Place, seconds: float, failed: str) -> None:
        """A run came to its end, or failed with a sentence."""


@dataclass
class Outcome:
    """What one call of a suite came to; labels of places."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # that had a record before
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # for another call
    absent: dict[str, str] = field(default_factory=dict)  # datasets that this machine does not have: the sentence

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return dict(vars(self))


@dataclass
class Runner:
    """Makes the runs of one suite: where folders and results go, and how long it may take."""

    suite: Suite
    results: Path
    work: Path
    budget: Budget
    teller: Teller
    overrides: Sequence[str] = ()
    outcome: Outcome = field(default_factory=Outcome)
    _broken: dict[Path, str] = field(default_factory=dict)  # known stages that failed in this call

    def run(self, chosen: Sequence[Place]) -> Outcome:
        """Brings the chosen runs to their ends; what the budget does not hold is left."""
        _allow_many_programs()
        waiting = self._waiting(chosen, read_records(self.results))
        for number, plan in enumerate(waiting, start=1):
            try:
                self.budget.require(self.budget.start)
                self._one(plan, number, len(waiting))
            except OutOfTime:
                self.outcome.left = [plan.place.label for plan in waiting[number - 1 :]]
                break
        return self.outcome

    def _waiting(self, chosen: Sequence[Place], found: Found) -> list[Planned]:
        """What is still to be run, that which failed before last; settings that are refused fail here."""
        waiting, again = list[Planned](), list[Planned]()
        for place in chosen:
            try:
                plan = planned(self.suite, place, self.overrides)
            except AsterismError as error:
                self.outcome.failed[place.label] = sentence(error)
                self.teller.ended(place, 0.0, sentence(error))
                continue
            record = found.of(plan)
            if record is not None and not record.failed:
                self.outcome.kept.append(place.label)
            elif self._is_here(plan):
                (waiting if record is None else again).append(plan)
        return waiting + again

    def _is_here(self, plan: Planned) -> bool:
        """Whether the images of a run are on this machine; where not, its cells stay empty, and it is said once."""
        settings = plan.experiment.data
        if settings.images == DIGITS or plan.place.dataset in self.outcome.absent:
            return settings.images == DIGITS
        try:
            locate(settings)
        except AsterismError as error:
            self.outcome.absent[plan.place.dataset] = sentence(error)
            return False
        return True

    def _one(self, plan: Planned, number: int, of: int) -> None:
        label, began = plan.place.label, time.monotonic()
        failed = ""
        try:
            self._run(plan, Timed(self.teller.begun(plan.place, number, of), self.budget))
            self.outcome.done.append(label)
        except OutOfTime:
            raise
        except Exception as error:  # a row fails alone, whatever it was
            failed = sentence(error)
            self.outcome.failed[label] = failed
            keep(failure(self.suite.name, plan, circumstances(), failed), plan, self.results)
        self.teller.ended(plan.place, time.monotonic() - began, failed)
        _let_go()

    def _run(self, plan: Planned, progress: Timed) -> None:
        known = self._known(plan, progress)
        folder = begun(plan, self.work, known)
        before, began = _stage_seconds(folder), time.monotonic()
        execute(folder, progress, loaded_once)
        overhead = time.monotonic() - began - (_stage_seconds(folder) - before)
        record = measured(self.suite.name, plan, folder, circumstances(), max(0.0, overhead))
        keep(record, plan, self.results)

    def _known(self, plan: Planned, progress: Timed) -> Path:
        """The known stage that the run starts from; one that failed in this call is not tried again."""
        folder = known_folder(plan, self.work)
        if folder in self._broken:
            raise AsterismError(self._broken[folder])
        try:
            return trained(plan, self.work, progress, loaded_once)
        except OutOfTime:
            raise
        except Exception as error:
            self._broken[folder] = sentence(error)
            raise


@lru_cache(maxsize=1)
def loaded_once(settings: Images, *, seed: int) -> Loaded:
    """The images of a suite's runs, decoded once where they follow one another; nobody writes into them."""
    return load_images(settings, seed=seed)


def _stage_seconds(folder: Path) -> float:
    return sum(seconds_spent(Lines(folder / "events.jsonl")).values())


def circumstances() -> Mapping[str, Any]:
    """What computes, as a record tells it."""
    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    told: dict[str, Any] = {"device": device, "commit": commit(), "versions": versions()}
    return told | ({"memory": torch.cuda.max_memory_allocated()} if on_gpu else {})


def _allow_many_programs() -> None:
    """Lets one process compile a function for every method of a suite; past torch's limit it would turn slow."""
    if torch.cuda.is_available():
        import torch._dynamo.config as compiler

        compiler.recompile_limit = PROGRAMS


def _let_go() -> None:
    """What the last run held of the machine is free for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class Quiet:
    """Tells nothing."""

    def begun(self, place: Place, number: int, of: int) -> Progress:
        """Nothing."""
        return Silent()

    def ended(self, place: Place, seconds: float, failed: str) -> None:
        """Nothing."""


class Lined:
    """One line for each run, and the run's own where ``inside`` makes a place for them."""

    def __init__(self, say: Callable[[str], None], inside: Callable[[], Progress] = Silent) -> None:
        self._say, self._inside = say, inside

    def begun(self, place: Place, number: int, of: int) -> Progress:
        """Says which run begins."""
        self._say(f"[{number}/{of}] {place.label}")
        return self._inside()

    def ended(self, place: Place, seconds: float, failed: str) -> None:
        """Says what became of it."""
        self._say(f"    {'FAILED: ' + failed if failed else 'done'} ({place.label}, {seconds:.0f} s)")
