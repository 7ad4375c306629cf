"""GAL, novel class learning: the paper's Algorithm 1.

All participants cluster their unlabelled images once and send the centres; the server counts the classes by Potential
Prototype Merge and starts the novel rows of the head from the global prototypes (``asterism.algorithms.discover``).
Clients then train with the Semantic-Weighted Loss, while EMA (Eq. 10) holds the extractor near m^L.

Needs unlabelled images at the sites. What leaves a site: cluster centres and sizes once a stage, model vectors.
Departures (docs/departures.md): the server takes the EMA after averaging, which is the same since both are linear;
ẑ_c are the head's rows and learn; EMA draws running statistics back too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from asterism.algorithms.anchor import Anchor, released
from asterism.algorithms.labelled import labelled_draws
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.remember import Remember, remembering
from asterism.algorithms.stage import Plan, advanced, begun, training
from asterism.config import Section
from asterism.data.augment import augment
from asterism.flow import Flow, Options, Reply, State, Tensors, Total
from asterism.losses import pairwise_loss, same_ranking, semantic_weighted_loss, semantic_weights
from asterism.memory import novel_share, pseudo_labelled
from asterism.site import Share, Site
from asterism.training import Batch, Step

COLLAPSING = 0.6  # mean largest SWL weight below which its prototypes were seen to fall together (methods)


class Gal(Section):
    """Novel class learning by GAL. Defaults are the paper's; the last three settings are its ablations."""

    name: Literal["gal"] = "gal"
    tau: Annotated[float, Field(gt=0)] = 0.07  # τ, Eq. 9
    beta: Annotated[float, Field(ge=0, le=1)] = 0.99  # β, Eq. 10
    anchor: Anchor = "fixed"
    detach: bool = False  # SWL's weights as constants
    batch_statistics: bool = True  # let BatchNorm follow the novel images; EMA draws its statistics back too
    loss: Literal["swl", "bce"] = "swl"  # bce: the pairwise loss of Eq. 11
    forgetting: Literal["ema", "distillation"] = "ema"
    remember: Remember = Remember()  # of distillation
    pseudo: Annotated[float, Field(ge=0)] = 1.0  # weight of cross entropy on images that screening took for known
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.0  # the least of them that count

    @property
    def held(self) -> float:
        """The share by which the server draws the extractor back after a round."""
        return self.beta if self.forgetting == "ema" else 0.0


def novel_stage(state: State, everyone: Sequence[str], p: Gal, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning; comments name the lines of Algorithm 1."""
    state = yield from begun(state, everyone, setup, plan, initial="prototypes")  # 1-14
    while state.round < plan.rounds:  # 15
        total: Total = yield training(state, everyone, setup, plan.rounds, "gal", p, sent(state, p))  # 16-20
        state = advanced(  # 21, and EMA of 19
            state, total, everyone, setup, beta=p.held, anchor=p.anchor, batch_statistics=p.batch_statistics
        )
        yield state  # 22
    return released(state)


def sent(state: State, p: Gal) -> Tensors:
    """What a client needs: the model and the FL algorithm's tensors, and m^L only where it is distilled."""
    return state.tensors if p.forgetting == "distillation" else released(state).tensors


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of novel class learning on its own unlabelled images."""
    (local, p), frozen = told(options, Gal), int(options["frozen"])
    known = pseudo_labelled(site, local.stage, p.confidence)
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: novel_step(site, local, p, tensors, frozen, known),
        # With and without images taken for known, the step is another.
        program=f"gal {options['method']} {len(known) > 0}",
        frozen_rows=frozen,
        batch_statistics=p.batch_statistics,
        kept=1 - p.held,
    )


def novel_step(site: Site, local: Local, p: Gal, tensors: Tensors, frozen: int, known: Share) -> Step:
    """The step of GAL on one mini-batch: augment, represent, SWL over this stage's rows."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    held = remembering(site, local, p.remember, tensors, frozen) if p.forgetting == "distillation" else None
    kept = pseudo_labels(site, local, p, known)

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = augment(pixels, local.augment, rng)
        z, rows = network.represent(images), network.prototypes[frozen:]
        loss = network.speed.of(novel_loss, len(z))(z, rows, p)
        if held is not None:
            loss = loss + held(images, z)
        if kept is not None:
            loss = loss + kept(len(images))
        return Batch(images, z, loss, network.speed.of(monitors, len(z))(z, rows, p.tau))

    return step


def pseudo_labels(site: Site, local: Local, p: Gal, known: Share) -> Callable[[int], Tensor] | None:
    """The paper's GAL-mixture: cross entropy on so many images that screening took for known, where there are any."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "pseudo-labelled", local.stage, local.round, site.name)
    draw = labelled_draws(site, known, rng) if p.pseudo else None
    if draw is None:
        return None

    def loss(count: int) -> Tensor:
        pixels, labels = draw(count)
        return p.pseudo * cross_entropy(network(augment(pixels, local.augment, rng)), labels)

    return loss


def novel_loss(z: Tensor, rows: Tensor, p: Gal) -> Tensor:
    """SWL (Eq. 9), or the pairwise loss (Eq. 11) in the ablation without it."""
    if p.loss == "bce":
        return pairwise_loss((z @ rows.T).float().softmax(dim=1), same_ranking(z))
    return semantic_weighted_loss(z, rows, p.tau, detach=p.detach)


@torch.no_grad()
def monitors(z: Tensor, rows: Tensor, tau: float) -> dict[str, Tensor]:
    """Mean norm of the features and mean largest weight of SWL, which tell learning from collapse."""
    largest = semantic_weights(z, rows, tau).amax(dim=1).mean()
    return {"feature_norm": z.float().norm(dim=1).mean(), "largest_weight": largest}


def alarm(watched: Mapping[str, float]) -> str | None:
    """A sentence where a round's monitors say that SWL is about to collapse its prototypes."""
    weight = watched.get("largest_weight", 1.0)
    if weight >= COLLAPSING:
        return None
    return f"the mean largest SWL weight is {weight:.2f}: prototypes may collapse; lower tau or raise beta"
