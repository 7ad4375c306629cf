"""The whole contract between an algorithm and the world: states, asks, answers, and the loop that joins them.

A stage of learning is a generator, called a *flow*. It yields an ask (``Sum`` or ``Collect``) and receives what the
participants answered; it yields a ``State`` to have it kept. It does no input or output, reads no clock and never
logs, so the same flow runs in process, over a network, from a stored run, and in a test that answers by hand.
A flow started from a kept state goes on exactly as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Tensors = Mapping[str, Tensor]
Options = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Version:
    """Which model an order speaks of: a reply to another version is refused, never averaged."""

    stage: str
    round: int
    layout: str


@dataclass(frozen=True)
class State:
    """Everything a flow must remember between rounds; what is not in here does not survive a resume.

    ``tensors`` holds the model (``parameters``, ``buffers``, ``counters``) and whatever an algorithm adds to it
    (SCAFFOLD's ``variate``); ``classes`` names the rows of the head that stand for a class, in order.
    """

    stage: str
    round: int
    tensors: Tensors
    layout: str
    classes: tuple[str, ...]

    @property
    def version(self) -> Version:
        """The version that orders sent from this state carry."""
        return Version(self.stage, self.round, self.layout)


@dataclass(frozen=True)
class Ask:
    """An order to some participants: run ``task`` on these tensors and options."""

    participants: tuple[str, ...]
    task: str
    tensors: Tensors
    version: Version
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Sum(Ask):
    """An ask of which the flow sees only the weighted total (``Total``): rounds of training, statistics."""


@dataclass(frozen=True)
class Collect(Ask):
    """An ask of which the flow sees every reply (``Answers``): prototypes, robust aggregation."""


@dataclass(frozen=True)
class Reply:
    """What one participant sends back; ``weight`` 0 means that it took part but has nothing to add.

    ``metrics`` are plain amounts (images, steps, summed loss) that may be added up over participants. ``version`` is
    stamped by the participant's side when it answers an order.
    """

    tensors: Tensors
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: Version | None = None


Reason = Literal["exception", "unavailable", "timeout", "rejected"]


@dataclass(frozen=True)
class Failure:
    """A participant that was asked and gave nothing usable."""

    participant: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class Total:
    """The answer to a ``Sum``: Σ weight·tensor and Σ weight; integer tensors hold the largest value instead.

    A round that missed its quorum reads as a total of weight 0, on which a flow keeps the model it has.
    """

    tensors: Tensors
    weight: float
    replies: int
    contributors: int  # replies of weight above 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def mean(self) -> dict[str, Tensor]:
        """The weighted mean of every tensor; empty where no one had anything to add."""
        if self.weight == 0:
            return {}
        return {
            name: value / self.weight if value.is_floating_point() else value for name, value in self.tensors.items()
        }


@dataclass(frozen=True)
class Answers:
    """The answer to a ``Collect``: replies by participant, in the order asked, and who failed."""

    replies: Mapping[str, Reply]
    failures: tuple[Failure, ...] = ()


Answer = Total | Answers
# What a flow receives depends on what it yielded: Total for a Sum, Answers for a Collect, nothing for a State.
Flow = Generator[Ask | State, Any, State]


def run(flow: Flow, ask: Callable[[Ask], Answer], keep: Callable[[State], None]) -> State:
    """The state a flow ends with, each of its asks answered by ``ask`` and each state it yields given to ``keep``."""
    answer: Answer | None = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            final: State = end.value
            return final
        if isinstance(step, State):
            keep(step)
            answer = None
        else:
            answer = ask(step)
