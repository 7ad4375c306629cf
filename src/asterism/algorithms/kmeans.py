"""The paper's "FL algorithm + Kmeans": the extractor of the known stage as it is, and the global prototypes.

No round of training: a novel image belongs to the nearest global prototype. arg min ‖z − w‖ is arg max z·w − ‖w‖²/2,
so the rows are the prototypes and a bias reads them by distance. Works with every FL algorithm, which the known stage
alone uses, and any number of stages. Needs unlabelled images at the sites; cluster centres and sizes leave them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from asterism.algorithms.anchor import frozen_rows, released
from asterism.algorithms.local import Setup
from asterism.algorithms.stage import Plan, begun
from asterism.config import Section
from asterism.flow import Flow, State


class Kmeans(Section):
    """K-means has no settings of its own; discovery has them."""

    name: Literal["kmeans"] = "kmeans"


def novel_stage(state: State, everyone: Sequence[str], p: Kmeans, setup: Setup, plan: Plan) -> Flow:
    """Novel classes as the nearest global prototypes; there is no round of training."""
    state = yield from begun(state, everyone, setup, plan, initial="prototypes")
    layout = setup.layout.with_rows(len(state.classes))
    rows, frozen = layout.head(state.tensors["parameters"]), frozen_rows(state, setup)
    bias = state.tensors.get("bias", torch.zeros(len(rows), device=rows.device)).clone()
    bias[frozen:] = -rows[frozen:].square().sum(dim=1) / 2
    return released(replace(state, tensors={**state.tensors, "bias": bias}))
