"""The frame of a novel stage, which every method of novel class learning fills with a local step of its own."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asterism.algorithms.anchor import Anchor, frozen_rows, merged
from asterism.algorithms.discover import Discovery, Initial, discover
from asterism.algorithms.local import Setup
from asterism.algorithms.screen import Screening, screening_flow
from asterism.config import Section
from asterism.federated import FEDERATED
from asterism.flow import Ask, State, Sum, Tensors, Total


@dataclass(frozen=True)
class Plan:
    """What a run plans for one novel stage, whatever the method.

    ``met``: true classes of earlier stages, by which a simulation counts what screening found.
    """

    rounds: int
    discovery: Discovery
    screening: Screening
    met: int | None = None


def begun(
    state: State, everyone: Sequence[str], setup: Setup, plan: Plan, *, initial: Initial = "random"
) -> Generator[Ask | State, Any, State]:
    """The state with a row for each new class, kept; as it is where the stage had already begun.

    ``initial``: how the method's rows begin unless the settings say otherwise.
    """
    if "anchor" in state.tensors:
        return state
    known = len(state.classes)
    yield from screening_flow(state, everyone, plan.screening, seed=setup.seed, known=known, met=plan.met)
    state = yield from discover(state, everyone, plan.discovery, setup, initial)
    yield state
    return state


def training(
    state: State, everyone: Sequence[str], setup: Setup, rounds: int, task: str, p: Section, tensors: Tensors
) -> Sum:
    """The ask of one round: its clients train by ``task``, are sent these tensors, and are seen as a sum only."""
    options = {**setup.order(state, rounds, p), "frozen": frozen_rows(state, setup)}
    return Sum(setup.clients(everyone, state), task, tensors, state.version, options)


def sent(state: State, *without: str) -> Tensors:
    """What a client needs: the model, the companion, the FL algorithm's tensors; not the anchor, nor these."""
    return {name: value for name, value in state.tensors.items() if name not in ("anchor", "anchor_buffers", *without)}


def advanced(
    state: State,
    total: Total,
    everyone: Sequence[str],
    setup: Setup,
    *,
    beta: float,
    anchor: Anchor = "fixed",
    batch_statistics: bool = True,
) -> State:
    """The state after a round: the clients' mean as the FL algorithm takes it, its extractor drawn back by EMA.

    A round that nobody contributed to changes nothing: EMA alone would draw the extractor back to its anchor.
    """
    if total.weight == 0:
        return replace(state, round=state.round + 1)
    averaged = FEDERATED[setup.federation.algorithm.name].update(state, total, len(everyone))
    tensors = merged(state, averaged, setup, beta=beta, anchor=anchor, batch_statistics=batch_statistics)
    return replace(state, tensors=tensors, round=state.round + 1)
