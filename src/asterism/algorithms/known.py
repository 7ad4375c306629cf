"""Known class learning, the first half of the paper's Algorithm 2: the federation trains on labelled classes.

Local loss L = CE + η·PCL (Eq. 4), under any FL algorithm of ``asterism.federated``. Needs labelled images at the
sites; only model vectors leave them. Departures: the logarithm and the cosine of Eq. 4, learning rate over rounds,
momentum and augmentation, which the paper leaves open (docs/departures.md).

The option ``rotations`` learns class × quarter turn instead of class: each class then has four head rows, its images
are turned with probability ``turn_rate``, and only the upright rows outlive the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.config import Section
from asterism.data.augment import augment, quarter_turns
from asterism.federated import FEDERATED
from asterism.flow import Flow, Options, Reply, State, Sum, Tensors, Total
from asterism.losses import known_class_loss
from asterism.model import Layout
from asterism.site import Site
from asterism.training import Batch, Step

TURNS = 4


class Known(Section):
    """Known class learning. Defaults are the paper's."""

    rounds: Annotated[int, Field(ge=1)] = 30  # E_g
    eta: Annotated[float, Field(ge=0)] = 0.1  # η, weight of PCL
    tau: Annotated[float, Field(gt=0)] = 0.07  # τ, Eq. 4
    rotations: bool = False  # learn class × quarter turn
    turn_rate: Annotated[float, Field(ge=0, le=1)] = 0.6  # share of images that are turned
    absent: tuple[str, ...] = ()  # participants who take no part in this stage

    def rows(self, classes: int) -> int:
        """Head rows while this stage lasts."""
        return classes * (TURNS if self.rotations else 1)


def known_stage(state: State, everyone: Sequence[str], p: Known, setup: Setup) -> Flow:
    """Known class learning; comments name the lines of Algorithm 2."""
    algorithm = FEDERATED[setup.federation.algorithm.name]
    while state.round < p.rounds:  # for t = 1 … E_g
        clients = setup.clients(everyone, state)  # select 𝒦 clients
        options = setup.order(state, p.rounds, p)
        total: Total = yield Sum(clients, "known", state.tensors, state.version, options)  # CE + η·PCL, upload
        tensors = algorithm.update(state, total, len(everyone))  # FedAvg
        state = replace(state, tensors=tensors, round=state.round + 1)
        yield state  # distribute
    return upright(state, setup.layout)


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of known class learning on its own labelled images."""
    local, p = told(options, Known)
    return train_share(
        site,
        tensors,
        local,
        site.share(local.stage),
        lambda: known_step(site, local, p),
        program=f"known {options['method']}",
    )


def known_step(site: Site, local: Local, p: Known) -> Step:
    """The step of known class learning on one mini-batch: augment, perhaps turn, represent, CE + η·PCL."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)

    def step(pixels: Tensor, labels: Tensor) -> Batch:
        images = augment(pixels, local.augment, rng)
        if p.rotations:
            images, labels = turned(images, labels, site.worker.layout.rows // TURNS, p.turn_rate, rng)
        z = network.represent(images)
        loss = network.speed.of(known_class_loss, len(z))(z, labels, network.prototypes, p.eta, p.tau)
        return Batch(images, z, loss)

    return step


def turned(images: Tensor, labels: Tensor, classes: int, rate: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of which a share ``rate`` is turned by one to three quarters, labelled turn·classes + class."""
    n, device = len(images), images.device
    turn = torch.randint(1, TURNS, (n,), generator=rng, device=device)
    turn = turn * (torch.rand(n, generator=rng, device=device) < rate)
    return quarter_turns(images, turn), turn * classes + labels


def upright(state: State, layout: Layout) -> State:
    """The state without the rows of turned classes; unchanged where there are none."""
    cut = layout.with_rows(len(state.classes))
    if cut.id == state.layout:
        return state
    vectors = {
        name: value[: cut.size] if name in ("parameters", "variate") else value for name, value in state.tensors.items()
    }
    return replace(state, tensors=vectors, layout=cut.id)
