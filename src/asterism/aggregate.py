"""Folding replies into a total as they arrive, and the reasons for which a reply is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from asterism.flow import Answer, Answers, Ask, Collect, Failure, Reply, Tensors, Total

Outcome = Reply | Failure


def refusal(ask: Ask, reply: Reply) -> str | None:
    """Why ``reply`` must not count as an answer to ``ask``, or None where it may."""
    if reply.version != ask.version:
        return f"answers {reply.version}, asked was {ask.version}"
    if not 0 <= reply.weight < float("inf"):
        return f"weight {reply.weight} is not a finite number of at least 0"
    for name, value in reply.tensors.items():
        sent = ask.tensors.get(name)
        if sent is not None and (sent.shape != value.shape or sent.dtype != value.dtype):
            return f"{name} is {_shape(value)}, sent was {_shape(sent)}"
        if not finite(value, reply.weight):
            return f"{name} holds values that are not finite, or not once weighted by {reply.weight}"
    for name, amount in reply.metrics.items():
        if not math.isfinite(amount):
            return f"metric {name} is {amount}"
    return None


class Fold:
    """A running weighted total: one accumulator a tensor, however many participants answer."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._metrics: dict[str, float] = {}
        self._weight = 0.0
        self._replies = self._contributors = 0

    def mismatch(self, reply: Reply) -> str | None:
        """Why ``reply`` cannot be added to those before it, or None where it can."""
        if reply.weight == 0 or self._weight == 0:
            return None
        if reply.tensors.keys() != self._tensors.keys():
            return f"sends {sorted(reply.tensors)}, the others {sorted(self._tensors)}"
        for name, value in reply.tensors.items():
            if value.shape != self._tensors[name].shape or value.dtype != self._tensors[name].dtype:
                return f"{name} is {_shape(value)}, the others send {_shape(self._tensors[name])}"
        return None

    def add(self, reply: Reply) -> None:
        """Adds a reply that was neither refused nor mismatched."""
        self._replies += 1
        for name, amount in reply.metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + amount
        if reply.weight == 0:
            return
        if self._weight == 0:
            self._tensors = {name: _first(value, reply.weight) for name, value in reply.tensors.items()}
        else:
            _add(self._tensors, reply.tensors, reply.weight)
        self._weight += reply.weight
        self._contributors += 1

    def total(self, failures: tuple[Failure, ...] = ()) -> Total:
        """Everything added so far."""
        return Total(self._tensors, self._weight, self._replies, self._contributors, self._metrics, failures)


def answered(ask: Ask, outcomes: Iterable[tuple[str, Outcome]]) -> Answer:
    """The answer to an ask, each outcome taken in and let go as it arrives."""
    fold, replies, failures = Fold(), dict[str, Reply](), list[Failure]()
    for participant, outcome in outcomes:
        if isinstance(outcome, Failure):
            failures.append(outcome)
            continue
        why = refusal(ask, outcome)
        if why is None and not isinstance(ask, Collect):
            why = fold.mismatch(outcome)
        if why is not None:
            failures.append(Failure(participant, "rejected", why))
        elif isinstance(ask, Collect):
            replies[participant] = outcome
        else:
            fold.add(outcome)
    if isinstance(ask, Collect):
        return Answers(replies, tuple(failures))
    return fold.total(tuple(failures))


def finite(value: Tensor, weight: float = 1.0) -> bool:
    """Whether weight·value is finite throughout; the two ends tell, which are NaN where any entry is."""
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(value.aminmax()) * weight).all())


def _first(value: Tensor, weight: float) -> Tensor:
    return value * weight if value.is_floating_point() else value.clone()


def _add(totals: dict[str, Tensor], tensors: Tensors, weight: float) -> None:
    for name, sent in tensors.items():
        value = sent.to(totals[name].device)  # participants may compute on several GPUs
        if value.is_floating_point():
            totals[name].add_(value, alpha=weight)
        else:
            # An average of BatchNorm's batch counters would no longer be an integer.
            torch.maximum(totals[name], value, out=totals[name])


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
