"""Growing the head for a novel stage, and holding on to the model that the stage began with.

While a novel stage lasts, ``anchor`` (the parameter vector of the model that entered it) and ``anchor_buffers`` stay
in the state. The rows of the anchor's head are the classes of earlier stages: they no longer change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from asterism.algorithms.local import Setup
from asterism.flow import State, Tensors
from asterism.model import fitted, grow

MODEL = ("parameters", "buffers", "counters")
Anchor = Literal["fixed", "previous"]  # θ^L of Eq. 10: m^L, or the model the round began with
DISCOVERED = re.compile(r"novel-\d+")


def model(state: State) -> dict[str, Tensor]:
    """The vectors of the model alone."""
    return {name: state.tensors[name] for name in MODEL}


def grown(state: State, rows: Tensor, setup: Setup) -> State:
    """The state with ``rows`` at the end of its head, named, and with the model it had as anchor."""
    classes = (*state.classes, *new_names(state.classes, len(rows)))
    parameters = state.tensors["parameters"]
    anchors = {"anchor": parameters, "anchor_buffers": state.tensors["buffers"]}
    tensors = {**state.tensors, **anchors, "parameters": grow(parameters, rows)}
    tensors.pop("joint", None)  # of a method that read the classes of an earlier stage by a head of their own
    if "bias" in tensors:
        tensors["bias"] = fitted(tensors["bias"], len(classes))
    return replace(state, tensors=tensors, classes=classes, layout=setup.layout.with_rows(len(classes)).id)


def new_names(classes: Sequence[str], count: int) -> tuple[str, ...]:
    """``novel-1 … novel-n``, going on from earlier stages, so that a name never changes its meaning."""
    earlier = sum(DISCOVERED.fullmatch(name) is not None for name in classes)
    return tuple(f"novel-{earlier + i + 1}" for i in range(count))


def frozen_rows(state: State, setup: Setup) -> int:
    """Head rows of the known classes and of earlier novel stages."""
    return (len(state.tensors["anchor"]) - setup.layout.extractor_size) // setup.layout.features


def merged(
    state: State, averaged: Tensors, setup: Setup, *, beta: float, anchor: Anchor, batch_statistics: bool
) -> Tensors:
    """The clients' mean with its extractor drawn back by EMA and its frozen rows as they were.

    What must not move is put back rather than averaged: the mean of equal floats may differ in its last bit.
    """
    entered, extractor = state.tensors["anchor"], setup.layout.extractor_size
    origin, statistics = state.tensors["parameters"], state.tensors["buffers"]
    if anchor == "fixed":
        origin, statistics = entered, state.tensors["anchor_buffers"]
    held = ema(origin[:extractor], averaged["parameters"][:extractor], beta)
    parameters = torch.cat([held, entered[extractor:], averaged["parameters"][len(entered) :]])
    buffers = state.tensors["buffers"]
    if batch_statistics:
        buffers = ema(statistics, averaged["buffers"], beta)
    return {**averaged, "parameters": parameters, "buffers": buffers}


def ema(anchor: Tensor, trained: Tensor, beta: float) -> Tensor:
    """Eq. 10: β·θ^L + (1 − β)·θ; exactly the anchor at β = 1 and exactly θ at β = 0."""
    return torch.lerp(anchor, trained, 1 - beta)


def released(state: State, *more: str) -> State:
    """The state without its anchor, its companion and what ``more`` a method drops, as a stage leaves it."""
    gone = ("anchor", "anchor_buffers", "companion", *more)
    return replace(state, tensors={name: value for name, value in state.tensors.items() if name not in gone})
