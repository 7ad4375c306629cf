"""AutoNovel, in a federation: pairwise pseudo-labels by rank statistics.

Paper: Han et al., *AutoNovel: Automatically Discovering and Learning Novel Visual Categories*, TPAMI 2021. Two images
are of one class where the sets of their top five features coincide; binary cross entropy makes the products of their
predictions say so (Eq. 11 of the seed paper), one factor from each of two views, so that an image is also a pair with
itself. EMA (Eq. 10) holds the extractor near m^L.

Needs unlabelled images at the sites; model vectors leave them. Departures (docs/departures.md): the preset ``paper``,
which is the seed paper's, drops the labelled images and the consistency of the two views; ``full`` brings the
consistency back. The original trains the last residual stage only; here EMA holds all of the extractor instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from asterism.algorithms.anchor import Anchor, released
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.stage import Plan, advanced, begun, training
from asterism.config import Section, with_preset
from asterism.data.augment import two_views
from asterism.flow import Flow, Options, Reply, State, Tensors, Total
from asterism.losses import two_view_loss
from asterism.memory import novel_share
from asterism.site import Site
from asterism.training import Batch, Step, ramp_up

FULL = {"consistency": 50.0}


class AutoNovel(Section):
    """Settings of AutoNovel; where a preset says otherwise than the defaults, the preset's value holds."""

    name: Literal["autonovel"] = "autonovel"
    preset: Literal["paper", "full"] = "paper"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.99  # β, Eq. 10
    anchor: Anchor = "fixed"
    top: Annotated[int, Field(ge=1)] = 5  # features whose ranks are compared
    consistency: Annotated[float, Field(ge=0)] = 0.0  # λ of the two views' squared difference; full: 50
    ramp: Annotated[float, Field(gt=0)] = 0.75  # share of the rounds over which λ is reached

    _filled = model_validator(mode="before")(with_preset(FULL))


def novel_stage(state: State, everyone: Sequence[str], p: AutoNovel, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by AutoNovel."""
    state = yield from begun(state, everyone, setup, plan)
    while state.round < plan.rounds:
        total: Total = yield training(state, everyone, setup, plan.rounds, "autonovel", p, released(state).tensors)
        state = advanced(state, total, everyone, setup, beta=p.beta, anchor=p.anchor)
        yield state
    return released(state)


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of AutoNovel on its own unlabelled images."""
    (local, p), frozen = told(options, AutoNovel), int(options["frozen"])
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: novel_step(site, local, p, frozen),
        program=f"autonovel {options['method']}",
        frozen_rows=frozen,
        kept=1 - p.beta,
    )


def novel_step(site: Site, local: Local, p: AutoNovel, frozen: int) -> Step:
    """The step of AutoNovel on one mini-batch: two views, represent, pairwise loss, consistency."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    weight = site.worker.hold("consistency", torch.tensor(p.consistency * ramp_up(local.progress / p.ramp)))
    consistency = weight if p.consistency else None

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = torch.cat(two_views(pixels, local.augment, rng))
        z = network.represent(images)
        loss, alike = network.speed.of(two_view_loss, len(z))(z, network.prototypes[frozen:], p.top, consistency)
        return Batch(images, z, loss, {"pairs_alike": alike})

    return step
