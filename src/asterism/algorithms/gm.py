"""GM, grow and merge, in a federation. A reconstruction: neither its code nor all of its details could be had.

Paper: Zhang et al., *Grow and Merge: A Unified Framework for Continuous Categories Discovery*, NeurIPS 2022. A dynamic
branch grows on novel images while a static one, the model as the stage began, holds still; then both are merged. As
the seed paper adapts it, two thirds of a stage's rounds grow and the last third merges, and EMA (Eq. 10) draws the
extractor back after every round.

- Growing: pairwise cross entropy by rank statistics over two views, perhaps their consistency, and ‖z − z_static‖².
- Merging: one head over known and novel classes, trained by cross entropy on confident pseudo-labels, with m^L's known
  logits distilled and known classes replayed around their prototypes.

Needs unlabelled images at the sites, and labelled ones for the exemplars of the preset ``full``; model vectors leave
them. Departures (docs/departures.md): weights, ramp and what counts as sure are our choices; novel rows are lengthened
before merging; prototypes are replayed in place of exemplars; known rows stay frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from asterism.algorithms.anchor import Anchor, frozen_rows, released
from asterism.algorithms.labelled import labelled_draws
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.remember import Remember, reference, remembering
from asterism.algorithms.stage import Plan, advanced, begun, training
from asterism.config import Section, with_preset
from asterism.data.augment import augment, two_views
from asterism.data.split import KNOWN
from asterism.flow import Flow, Options, Reply, State, Tensors, Total
from asterism.losses import two_view_loss
from asterism.memory import novel_share
from asterism.site import Site
from asterism.training import Batch, Step, ramp_up

FULL = {"consistency": 25.0, "exemplars": True}


class Gm(Section):
    """Settings of GM; where a preset says otherwise than the defaults, the preset's value holds."""

    name: Literal["gm"] = "gm"
    preset: Literal["paper", "full"] = "paper"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.99  # β, Eq. 10
    anchor: Anchor = "fixed"
    growing: Annotated[float, Field(gt=0, le=1)] = 2 / 3  # share of the rounds that grow
    top: Annotated[int, Field(ge=1)] = 5  # features whose ranks are compared
    consistency: Annotated[float, Field(ge=0)] = 0.0  # λ of the two views' squared difference; full: 25
    ramp: Annotated[float, Field(gt=0)] = 0.75  # share of the growing rounds over which λ is reached
    distance: Annotated[float, Field(ge=0)] = 0.1  # λ_d, from the static branch
    confident: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of a batch, the surest, whose pseudo-labels count
    remember: Remember = Remember()  # while merging
    exemplars: bool = False  # labelled known images while merging, as many as unlabelled ones; full: True

    _filled = model_validator(mode="before")(with_preset(FULL))

    def grown(self, rounds: int) -> int:
        """How many of so many rounds grow, which the first always does; the others merge."""
        return max(1, round(self.growing * rounds))


def novel_stage(state: State, everyone: Sequence[str], p: Gm, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by GM: rounds that grow, then rounds that merge."""
    state = yield from begun(state, everyone, setup, plan)
    while state.round < plan.rounds:
        grows = state.round < p.grown(plan.rounds)
        if not grows:
            state = with_grown(state, setup)
        tensors = released(state).tensors if grows and p.distance == 0 else state.tensors  # m^L where it is needed
        total: Total = yield training(state, everyone, setup, plan.rounds, "gm", p, tensors)
        state = advanced(state, total, everyone, setup, beta=p.beta, anchor=p.anchor)
        yield state
    return released(state, "grown", "grown_buffers")


def with_grown(state: State, setup: Setup) -> State:
    """The state with the model as growing left it, which gives the pseudo-labels of merging.

    Its novel rows are made as long as known ones are on average: those of a pairwise loss are far too short to be
    seen beside them, and cross entropy that has to lengthen them first was seen to lengthen one alone.
    """
    if "grown" in state.tensors:
        return state
    layout, frozen = setup.layout.with_rows(len(state.classes)), frozen_rows(state, setup)
    parameters = state.tensors["parameters"].clone()
    rows = layout.head(parameters)
    norms = rows.norm(dim=1)
    rows[frozen:] *= norms[:frozen].mean() / norms[frozen:].mean().clamp_min(torch.finfo(norms.dtype).tiny)
    left = {"parameters": parameters, "grown": parameters, "grown_buffers": state.tensors["buffers"]}
    return replace(state, tensors={**state.tensors, **left})


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of GM, growing or merging, on its own unlabelled images."""
    (local, p), frozen = told(options, Gm), int(options["frozen"])
    grows = local.round < p.grown(local.rounds)
    make, phase = (grow_step, "grow") if grows else (merge_step, "merge")
    exemplars = p.exemplars and not grows and len(site.share(KNOWN)) > 0
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: make(site, local, p, tensors, frozen),
        program=f"gm {phase} {exemplars} {options['method']}",
        frozen_rows=frozen,
        kept=1 - p.beta,
    )


def grow_step(site: Site, local: Local, p: Gm, tensors: Tensors, frozen: int) -> Step:
    """The step of growing on one mini-batch: two views, pairwise loss, consistency, distance of branches."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    done = local.round / (p.ramp * p.grown(local.rounds))
    weight = site.worker.hold("consistency", torch.tensor(p.consistency * ramp_up(done)))
    consistency = weight if p.consistency else None
    static = reference(site, "anchor", tensors) if p.distance else None

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = torch.cat(two_views(pixels, local.augment, rng))
        z = network.represent(images)
        loss, alike = network.speed.of(two_view_loss, len(z))(z, network.prototypes[frozen:], p.top, consistency)
        if static is not None:
            with torch.no_grad():
                still = static.represent(images[: len(pixels)])
            loss = loss + p.distance * branch_distance(z[: len(pixels)], still)
        return Batch(images, z, loss, {"pairs_alike": alike})

    return step


def merge_step(site: Site, local: Local, p: Gm, tensors: Tensors, frozen: int) -> Step:
    """The step of merging on one mini-batch: pseudo-labels, memory of known classes, and exemplars where there are."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    grown = reference(site, "grown", tensors)
    held = remembering(site, local, p.remember, tensors, frozen)
    exemplars = exemplar_loss(site, local) if p.exemplars else None

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = augment(pixels, local.augment, rng)
        z = network.represent(images)
        with torch.no_grad():
            seen = grown(images)[:, frozen:]
        loss = network.speed.of(unification_loss, len(z))(z @ network.prototypes.T, seen, p.confident)
        loss = loss + held(images, z)
        if exemplars is not None:
            loss = loss + exemplars(len(pixels))
        return Batch(images, z, loss)

    return step


def exemplar_loss(site: Site, local: Local) -> Callable[[int], Tensor] | None:
    """Cross entropy over all rows on so many labelled known images of a site; None where it has none."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "exemplars", local.stage, local.round, site.name)
    draw = labelled_draws(site, site.share(KNOWN), rng)
    if draw is None:
        return None

    def loss(number: int) -> Tensor:
        pixels, labels = draw(number)
        return cross_entropy(network(augment(pixels, local.augment, rng)), labels)

    return loss


def branch_distance(dynamic: Tensor, static: Tensor) -> Tensor:
    """Mean squared Euclidean distance of the two branches' representations (n, d) of the same images."""
    return (dynamic - static).square().sum(dim=1).mean()


def unification_loss(logits: Tensor, seen: Tensor, confident: float) -> Tensor:
    """Cross entropy of logits (n, rows) to the novel class of the largest logit ``seen`` (n, novel) by another model.

    Mean over the ``confident`` share of samples, one at least, in which that model sees it most surely.
    """
    probability, found = seen.detach().softmax(dim=1).max(dim=1)
    surest = probability.topk(max(1, round(confident * len(seen)))).indices
    return cross_entropy(logits[surest], logits.shape[1] - seen.shape[1] + found[surest])
