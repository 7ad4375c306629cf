"""What every stage of learning shares: who is drawn, what a client is told, and how its round runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from asterism.aggregate import finite
from asterism.companion import Companion
from asterism.config import Section
from asterism.data.settings import Augment
from asterism.federated import FEDERATED, Federation
from asterism.flow import Options, Reply, State, Tensors
from asterism.model import Layout
from asterism.seeds import generator
from asterism.site import Share, Site
from asterism.training import Fitted, Step, Train, fit, learning_rate

M = TypeVar("M", bound=Section)


class Local(Section):
    """What a client needs to know to train in a round, whatever the method."""

    train: Train
    federation: Federation
    augment: Augment
    seed: int
    stage: str
    round: int
    rounds: int
    lr: float

    @property
    def progress(self) -> float:
        """The share of the stage's rounds that are done, from 0 in the first to nearly 1 in the last."""
        return self.round / self.rounds

    @property
    def lasting(self) -> str:
        """What does not differ from round to round, as text."""
        return self.model_dump_json(include={"train", "federation", "augment"})


@dataclass(frozen=True)
class Setup:
    """What a run sets for all of its stages; ``layout`` is the network's, with whatever number of head rows."""

    federation: Federation
    train: Train
    augment: Augment
    seed: int
    layout: Layout

    def clients(self, everyone: Sequence[str], state: State) -> tuple[str, ...]:
        """The clients of the round that follows ``state``, drawn by a generator of their own."""
        return draw(everyone, self.federation.clients, generator(self.seed, "clients", state.stage, state.round))

    def order(self, state: State, rounds: int, method: Section) -> Options:
        """What clients are told for the round that follows ``state``."""
        local = Local(
            train=self.train,
            federation=self.federation,
            augment=self.augment,
            seed=self.seed,
            stage=state.stage,
            round=state.round,
            rounds=rounds,
            lr=learning_rate(self.train, state.round, rounds),
        )
        return {"local": local.model_dump_json(), "method": method.model_dump_json()}


def told(options: Options, method: type[M]) -> tuple[Local, M]:
    """What ``Setup.order`` told a client: how to train in this round, and the settings of its method."""
    return Local.model_validate_json(str(options["local"])), method.model_validate_json(str(options["method"]))


def draw(everyone: Sequence[str], count: int, rng: torch.Generator) -> tuple[str, ...]:
    """``count`` participants chosen at random, in the order of ``everyone``; all of them where there are no more."""
    chosen = torch.randperm(len(everyone), generator=rng)[:count].sort().values
    return tuple(everyone[i] for i in chosen.tolist())


def train_share(
    site: Site,
    tensors: Tensors,
    local: Local,
    share: Share,
    step: Callable[[], Step],
    *,
    program: str,
    frozen_rows: int = 0,
    batch_statistics: bool = True,
    companion: Companion | None = None,
    more: Callable[[], Tensors] = dict,
    kept: float = 1.0,
) -> Reply:
    """One client's round: the sent model trained on a share, or weight 0 from a client that has no images.

    Args:
        site: the participant.
        tensors: what was sent.
        local: how to train in this round.
        share: what to train on.
        step: makes the method's step, after the model is loaded.
        program: tells apart what else the step computes: its method and settings.
        frozen_rows: head rows that must not move.
        batch_statistics: whether normalisation layers follow the share.
        companion: a module to train beside the network; the sent tensor of that name is its vector.
        more: further tensors to send once the round is done.
        kept: the share of the extractor's movement that the server will not draw back.
    """
    if len(share) == 0:
        return Reply({}, weight=0.0)
    site.worker.load(tensors)
    if companion is not None:
        companion.load(tensors["companion"])
    algorithm = local.federation.algorithm
    term = FEDERATED[algorithm.name].start(site, tensors, algorithm, kept)
    fitted = fit(
        site.worker,
        share,
        step,
        local.train,
        lr=local.lr,
        rng=generator(local.seed, "batches", local.stage, local.round, site.name),
        term=term,
        frozen_rows=frozen_rows,
        batch_statistics=batch_statistics,
        companion=companion,
        program=f"{local.lasting} {frozen_rows} {program}",
    )
    _require_finite(fitted, site.worker.parameters)
    sent = {**site.worker.take(), **term.finish(site.worker, fitted.steps, local.lr), **more()}
    if companion is not None:
        sent["companion"] = companion.take()
    weight = float(len(share)) if local.federation.weighting == "size" else 1.0
    return Reply(sent, weight, {**fitted.metrics, "samples": float(len(share))})


def _require_finite(fitted: Fitted, parameters: Tensor) -> None:
    """Refuses a training that diverged before anything of it is kept: MOON would go on comparing with it for ever."""
    if not finite(parameters.detach()):
        raise ArithmeticError(
            f"local training diverged within {fitted.steps} steps: lower train.lr, or bound steps by train.clip"
        )
