"""The fleet of one machine: participants take turns in this process, and replies are folded as they come."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

from asterism.aggregate import Outcome, answered
from asterism.flow import Answer, Ask, Failure, Reply
from asterism.site import Gate, Site, Task, perform

Watch = Callable[[str, Outcome], None]


class InProcess:
    """Answers asks by running the participants' tasks here, one after the other, in the order asked.

    A site is made when it is asked and let go afterwards, and a reply is folded before the next is computed, so
    memory does not grow with the number of participants.
    """

    def __init__(
        self,
        site: Callable[[str], Site],
        participants: Sequence[str],
        tasks: Mapping[str, Task],
        *,
        gates: Sequence[Gate] = (),
        deadline: float | None = None,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._participants, self._tasks = site, frozenset(participants), tasks
        self.gates, self.deadline, self.watch, self._clock = tuple(gates), deadline, watch, clock

    def answer(self, ask: Ask) -> Answer:
        """What the participants answer, failures included."""
        return answered(ask, self._outcomes(ask))

    def _outcomes(self, ask: Ask) -> Iterator[tuple[str, Outcome]]:
        end = float("inf") if self.deadline is None else self._clock() + self.deadline
        for participant in ask.participants:
            outcome = self._outcome(participant, ask, end)
            if self.watch is not None:
                self.watch(participant, outcome)
            yield participant, outcome

    def _outcome(self, participant: str, ask: Ask, end: float) -> Outcome:
        if participant not in self._participants:
            return Failure(participant, "unavailable", "no such participant")
        if self._clock() >= end:
            return Failure(participant, "timeout", "the deadline passed before its turn")
        try:
            reply: Reply = perform(self._site(participant), ask, self._tasks, self.gates)
        except Exception as error:  # a participant's failure is an answer, whatever it was
            place = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
            return Failure(participant, "exception", detail)
        if self._clock() > end:
            return Failure(participant, "timeout", "answered after the deadline")
        return reply
