"""The fleet of one machine: participants work in this process, and replies are folded as they come."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition

import torch

from asterism.aggregate import Outcome, answered
from asterism.flow import Answer, Ask, Failure, Reply
from asterism.site import Gate, Site, Task, let_out, perform

Watch = Callable[[str, Outcome], None]
Sites = Callable[[str], Site]  # a participant's site by its name


class InProcess:
    """Answers asks by running the participants' tasks here, taken in in the order asked.

    A site is made when it is asked and let go afterwards, and a reply is folded before long, so memory does not grow
    with the number of participants. Each entry of ``sites`` serves one participant at a time (it has a worker of its
    own); with several, as many participants work at once, and the answer is the same.
    """

    def __init__(
        self,
        sites: Sites | Sequence[Sites],
        participants: Sequence[str],
        tasks: Mapping[str, Task],
        *,
        gates: Sequence[Gate] = (),
        deadline: float | None = None,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sites = (sites,) if callable(sites) else tuple(sites)
        self._participants, self._tasks = frozenset(participants), tasks
        self._free = _Free(self._sites)
        self.gates: Sequence[Gate] = tuple(gates)
        self.deadline, self.watch, self._clock = deadline, watch, clock

    def answer(self, ask: Ask) -> Answer:
        """What the participants answer, failures included."""
        return answered(ask, self._outcomes(ask))

    def _outcomes(self, ask: Ask) -> Iterator[tuple[str, Outcome]]:
        end = float("inf") if self.deadline is None else self._clock() + self.deadline
        one_by_one = len(self._sites) == 1 or len(ask.participants) == 1
        for participant, outcome in self._in_turn(ask, end) if one_by_one else self._at_once(ask, end):
            passed = self._passed(participant, ask, outcome)
            if self.watch is not None:
                self.watch(participant, passed)
            yield participant, passed

    def _passed(self, participant: str, ask: Ask, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Failure):
            return outcome
        return _caught(participant, lambda: let_out(participant, ask, outcome, self.gates))

    def _in_turn(self, ask: Ask, end: float) -> Iterator[tuple[str, Outcome]]:
        for participant in ask.participants:
            yield participant, self._outcome(self._sites[0], participant, ask, end)

    def _at_once(self, ask: Ask, end: float) -> Iterator[tuple[str, Outcome]]:
        def work(participant: str) -> Outcome:
            with self._free.one_for(participant) as sites:
                return self._outcome(sites, participant, ask, end)

        waiting: deque[tuple[str, Future[Outcome]]] = deque()
        with ThreadPoolExecutor(len(self._sites)) as pool:
            for participant in ask.participants:
                waiting.append((participant, pool.submit(work, participant)))
                if len(waiting) > len(self._sites):  # no more replies wait than there are workers
                    yield from _taken_in(waiting)
            while waiting:
                yield from _taken_in(waiting)

    def _outcome(self, sites: Sites, participant: str, ask: Ask, end: float) -> Outcome:
        if participant not in self._participants:
            return Failure(participant, "unavailable", "no such participant")
        if self._clock() >= end:
            return Failure(participant, "timeout", "the deadline passed before its turn")
        outcome = _caught(participant, lambda: perform(sites(participant), ask, self._tasks))
        if isinstance(outcome, Reply) and self._clock() > end:
            return Failure(participant, "timeout", "answered after the deadline")
        return outcome


class _Free:
    """Workers that wait for a participant.

    One who comes back is given the worker it had, if that is free: what was captured for the size of its left-over
    batches lies there.
    """

    def __init__(self, sites: Sequence[Sites]) -> None:
        self._waiting = list(enumerate(sites))
        self._had: dict[str, int] = {}
        self._changed = Condition()

    @contextmanager
    def one_for(self, participant: str) -> Iterator[Sites]:
        """A worker for as long as the block lasts; there must be one free by and by."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            had = self._had.get(participant)
            chosen = next((worker for worker in self._waiting if worker[0] == had), self._waiting[0])
            self._waiting.remove(chosen)
            self._had[participant] = chosen[0]
        try:
            yield chosen[1]
        finally:
            with self._changed:
                self._waiting.append(chosen)
                self._changed.notify()


def _caught(participant: str, work: Callable[[], Reply]) -> Outcome:
    """A participant's failure is an answer, whatever it was."""
    try:
        return work()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
        return Failure(participant, "exception", detail)


def _taken_in(waiting: deque[tuple[str, Future[Outcome]]]) -> Iterator[tuple[str, Outcome]]:
    """The outcome asked for first; its tensors are not let go before a GPU has added them up."""
    participant, future = waiting.popleft()
    outcome = future.result()
    yield participant, outcome
    if isinstance(outcome, Reply):
        for device in {value.device for value in outcome.tensors.values() if value.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
