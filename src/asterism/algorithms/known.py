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

from asterism.config import Section
from asterism.data.augment import augment, quarter_turns
from asterism.data.settings import Augment
from asterism.federated import FEDERATED, Federation
from asterism.flow import Flow, Options, Reply, State, Sum, Tensors, Total
from asterism.losses import known_class_loss
from asterism.model import Worker
from asterism.seeds import generator
from asterism.site import Site
from asterism.training import Batch, Step, Train, fit, learning_rate

TURNS = 4


class Known(Section):
    """Known class learning. Defaults are the paper's."""

    rounds: Annotated[int, Field(ge=1)] = 30  # E_g
    eta: Annotated[float, Field(ge=0)] = 0.1  # η, weight of PCL
    tau: Annotated[float, Field(gt=0)] = 0.07  # τ, Eq. 4
    rotations: bool = False  # learn class × quarter turn
    turn_rate: Annotated[float, Field(ge=0, le=1)] = 0.6  # share of images that are turned

    def rows(self, classes: int) -> int:
        """Head rows while this stage lasts."""
        return classes * (TURNS if self.rotations else 1)


class LocalKnown(Section):
    """What a participant needs to know to take part in a round."""

    known: Known
    train: Train
    federation: Federation
    augment: Augment
    seed: int
    stage: str
    round: int
    lr: float


def known_stage(
    state: State,
    everyone: Sequence[str],
    p: Known,
    *,
    federation: Federation,
    train: Train,
    augment: Augment,
    seed: int,
) -> Flow:
    """Known class learning; comments name the lines of Algorithm 2."""
    algorithm = FEDERATED[federation.algorithm.name]
    for t in range(state.round, p.rounds):  # for t = 1 … E_g
        clients = draw(everyone, federation.clients, generator(seed, "clients", state.stage, t))  # select 𝒦
        local = LocalKnown(
            known=p, train=train, federation=federation, augment=augment, seed=seed,
            stage=state.stage, round=t, lr=learning_rate(train, t, p.rounds),
        )  # fmt: skip
        options = {"local": local.model_dump_json()}
        total: Total = yield Sum(clients, "known", state.tensors, state.version, options)  # CE + η·PCL, upload
        tensors = algorithm.update(state, total, len(everyone))  # FedAvg
        state = replace(state, tensors=tensors, round=t + 1)
        yield state  # distribute
    return state


def draw(everyone: Sequence[str], count: int, rng: torch.Generator) -> tuple[str, ...]:
    """``count`` participants chosen at random, in the order of ``everyone``; all of them where there are no more."""
    chosen = torch.randperm(len(everyone), generator=rng)[:count].sort().values
    return tuple(everyone[i] for i in chosen.tolist())


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round: the model trained on its own images, or weight 0 from a client that has none."""
    p = LocalKnown.model_validate_json(str(options["local"]))
    share = site.share(p.stage)
    if len(share) == 0:
        return Reply({}, weight=0.0)
    site.worker.load(tensors)
    term = FEDERATED[p.federation.algorithm.name].start(site, tensors, p.federation.algorithm)
    rng = generator(p.seed, "batches", p.stage, p.round, site.name)
    fitted = fit(site.worker, share, known_step(site, p), p.train, lr=p.lr, rng=rng, term=term)
    sent = {**site.worker.take(), **term.finish(site.worker, fitted.steps, p.lr)}
    weight = float(len(share)) if p.federation.weighting == "size" else 1.0
    return Reply(sent, weight, {**fitted.metrics, "samples": float(len(share))})


def known_step(site: Site, p: LocalKnown) -> Step:
    """The step of known class learning on one mini-batch: augment, perhaps turn, represent, CE + η·PCL."""
    network, device = site.worker.network, site.worker.device
    rng = generator(p.seed, "augment", p.stage, p.round, site.name, device=device)

    def step(pixels: Tensor, labels: Tensor) -> Batch:
        images = augment(pixels, p.augment, rng)
        if p.known.rotations:
            images, labels = turned(images, labels, site.worker.layout.rows // TURNS, p.known.turn_rate, rng)
        z = network.represent(images)
        return Batch(images, z, known_class_loss(z, labels, network.prototypes, p.known.eta, p.known.tau))

    return step


def turned(images: Tensor, labels: Tensor, classes: int, rate: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of which a share ``rate`` is turned by one to three quarters, labelled turn·classes + class."""
    n, device = len(images), images.device
    turn = torch.randint(1, TURNS, (n,), generator=rng, device=device)
    turn = turn * (torch.rand(n, generator=rng, device=device) < rate)
    return quarter_turns(images, turn), turn * classes + labels


def upright(state: State, worker: Worker) -> State:
    """The state without the rows of turned classes; unchanged where there are none."""
    worker.load(state.tensors)
    layout = worker.layout.with_rows(len(state.classes))
    if layout.id == state.layout:
        return state
    vectors = {
        name: value[: layout.size] if name in ("parameters", "variate") else value
        for name, value in state.tensors.items()
    }
    return replace(state, tensors=vectors, layout=layout.id)
