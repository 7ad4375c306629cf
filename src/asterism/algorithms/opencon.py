"""OpenCon, in a federation: contrast, and prototypes that follow the images that are taken for theirs.

Paper: Sun & Li, *OpenCon: Open-world Contrastive Learning*, TMLR 2023. Every class, known or novel, has a prototype of
length 1. Unlabelled images that are less like the known prototypes than most labelled ones get the nearest prototype's
label; images of one label attract each other, as do two views of an image. Prototypes learn by moving average.

Needs unlabelled images at the sites and, in the novel stage too, their labelled ones; model vectors and sums of
prototypes leave them. Departures (docs/departures.md): prototypes lie on the sphere of the representation (``full``:
behind the original's projector), begin at the head's rows, are averaged by how many images moved them, and take their
length once a batch and not once an image; all of the extractor is trained; rows of known classes stay frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asterism.algorithms.anchor import frozen_rows, model, released
from asterism.algorithms.labelled import given, labelled_draws
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.moving import SUMS, Moving, turned_to
from asterism.algorithms.represent import represented
from asterism.algorithms.stage import Plan, advanced, begun, sent, training
from asterism.companion import Companion, fresh
from asterism.config import Section, with_preset
from asterism.data.augment import two_views
from asterism.flow import Flow, Options, Reply, State, Sum, Tensors, Total
from asterism.losses import label_contrastive_loss, prior_divergence, unit
from asterism.memory import novel_share
from asterism.site import Share, Site
from asterism.training import Batch, Step

FULL = {"projection": 128}


class OpenCon(Section):
    """Settings of OpenCon; where a preset says otherwise than the defaults, the preset's value holds."""

    name: Literal["opencon"] = "opencon"
    preset: Literal["paper", "full"] = "paper"
    known_share: Annotated[float, Field(ge=0, le=1)] = 1.0  # of a participant's known images, which the method is given
    labelled: Annotated[float, Field(gt=0)] = 1.0  # of those, how many are drawn to each unlabelled image
    beta: Annotated[float, Field(ge=0, le=1)] = 0.0  # β, Eq. 10: no forgetting compensation, as known images are there
    projection: Annotated[int, Field(ge=0)] = 0  # features behind the projector; 0: no projector; full: 128
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of a prototype, per image
    percentile: Annotated[float, Field(ge=0, le=1)] = 0.3  # of labelled images that are no more known-like than novel
    views: Annotated[float, Field(ge=0)] = 1.0  # weight of the contrast of views, of unlabelled images
    views_temperature: Annotated[float, Field(gt=0)] = 0.4
    labels: Annotated[float, Field(ge=0)] = 0.2  # weight of the contrast of labels, of labelled images
    labels_temperature: Annotated[float, Field(gt=0)] = 0.1
    pseudo: Annotated[float, Field(ge=0)] = 0.1  # weight of the contrast of pseudo-labels, of novel-like images
    pseudo_temperature: Annotated[float, Field(gt=0)] = 0.7
    ramp: Annotated[float, Field(gt=0)] = 0.5  # share of the rounds over which that weight is reached
    prior: Annotated[float, Field(ge=0)] = 0.05  # weight of the divergence of predictions from the prior
    unlabelled_known: Annotated[float, Field(ge=0, le=1)] = 0.0  # prior of a known class, by that of a novel one

    _filled = model_validator(mode="before")(with_preset(FULL))


def novel_stage(state: State, everyone: Sequence[str], p: OpenCon, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by OpenCon."""
    state = yield from begun(state, everyone, setup, plan)
    if state.round == 0:
        state = with_prototypes(state, p, setup)
    while state.round < plan.rounds:
        clients = setup.clients(everyone, state)
        total: Total = yield training(state, everyone, setup, plan.rounds, "opencon", p, sent(state, "joint"))
        state = with_moved_prototypes(advanced(state, total, everyone, setup, beta=p.beta))
        means: Total | None = (yield reading(state, clients, setup, p)) if p.projection else None
        state = with_rows(state, means, setup)
        yield state
    return released(state, "prototypes")


def with_prototypes(state: State, p: OpenCon, setup: Setup) -> State:
    """The state with a prototype for every class, where the rows of the head point, and with a projector if any."""
    parameters = state.tensors["parameters"]
    rows = setup.layout.with_rows(len(state.classes)).head(parameters)
    if p.projection == 0:
        return replace(state, tensors={**state.tensors, "prototypes": unit(rows)})
    build = partial(projector, setup.layout.features, p.projection)
    companion = Companion(build(), parameters.device)
    companion.load(fresh(build, setup.seed, state.stage))
    with torch.no_grad():
        prototypes = unit(companion.module(rows))
    return replace(state, tensors={**state.tensors, "prototypes": prototypes, "companion": companion.take()})


def with_moved_prototypes(state: State) -> State:
    """The state with prototypes where the clients' lie on average; one that no image moved stays."""
    tensors = dict(state.tensors)
    sums = tensors.pop(SUMS, None)  # there is none after a round that missed its quorum
    if sums is not None:
        tensors["prototypes"] = turned_to(sums, tensors["prototypes"])
    return replace(state, tensors=tensors)


def with_rows(state: State, means: Total | None, setup: Setup) -> State:
    """The state with the head's novel rows at the prototypes, or at the mean images behind them; likewise jointly."""
    parameters = state.tensors["parameters"].clone()
    rows, frozen = setup.layout.with_rows(len(state.classes)).head(parameters), frozen_rows(state, setup)
    if means is None:
        rows[frozen:] = state.tensors["prototypes"][frozen:]
        joint = state.tensors["prototypes"]
    else:
        rows[frozen:] = turned_to(means.mean().get("sums", torch.zeros_like(rows[frozen:])), unit(rows[frozen:]))
        joint = unit(rows)
    return replace(state, tensors={**state.tensors, "parameters": parameters, "joint": joint})


def reading(state: State, clients: tuple[str, ...], setup: Setup, p: OpenCon) -> Sum:
    """The ask for the mean images behind the novel prototypes, which a projector keeps the head from seeing."""
    tensors = {**model(state), "companion": state.tensors["companion"], "prototypes": state.tensors["prototypes"]}
    options: Options = {"stage": state.stage, "frozen": frozen_rows(state, setup), "projection": p.projection}
    return Sum(clients, "opencon-rows", tensors, state.version, options)


def projector(features: int, projection: int) -> nn.Module:
    """The original's two layers between representation and sphere."""
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, projection))


def projecting(site: Site, projection: int) -> Companion | None:
    """The projector beside the worker's network; None where there is none."""
    if projection == 0:
        return None
    features = site.worker.layout.features
    return site.worker.companion(f"opencon {projection}", partial(projector, features, projection))


@torch.no_grad()
def send_rows(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Sums of a participant's representations, each of length 1, by the novel prototype that each is nearest to."""
    share, companion = novel_share(site, str(options["stage"])), projecting(site, int(options["projection"]))
    if len(share) == 0 or companion is None:
        return Reply({}, weight=0.0)
    site.worker.load(tensors)
    companion.load(tensors["companion"])
    z = represented(site.worker, share)
    novel = tensors["prototypes"][int(options["frozen"]) :].to(z)
    nearest = (unit(companion.module(z)) @ novel.T).argmax(dim=1)
    sums = z.new_zeros(len(novel), z.shape[1]).index_add(0, nearest, unit(z))
    return Reply({"sums": sums}, metrics={"samples": float(len(share))})


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of OpenCon on its own unlabelled images, and on the labelled ones that it is given."""
    local, p = told(options, OpenCon)
    frozen, known = int(options["frozen"]), given(site, local.seed, p.known_share)
    companion, moving = projecting(site, p.projection), Moving.of(site, tensors["prototypes"])
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: novel_step(site, local, p, frozen, known, moving, companion),
        program=f"opencon {options['method']} {len(known) > 0}",
        frozen_rows=frozen,
        companion=companion,
        more=moving.sums,
        kept=1 - p.beta,
    )


def novel_step(
    site: Site, local: Local, p: OpenCon, frozen: int, known: Share, moving: Moving, companion: Companion | None
) -> Step:
    """The step of OpenCon on one mini-batch: two views, represent, pseudo-labels, the four terms, move prototypes."""
    network, device = site.worker.network, site.worker.device
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    order = site.worker.generator(local.seed, "order of images", local.stage, local.round, site.name)
    draw = labelled_draws(
        site, known, site.worker.generator(local.seed, "labelled", local.stage, local.round, site.name)
    )
    ramp = site.worker.hold("opencon ramp", torch.tensor(min(1.0, local.progress / p.ramp)))

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        n, labels = len(pixels), targets[:0]
        if draw is not None:
            more, labels = draw(max(1, round(p.labelled * n)))
            pixels = torch.cat([pixels, more])
        views = two_views(pixels, local.augment, rng)
        z = [network.represent(view) for view in views]
        projected = z if companion is None else [companion.module(view) for view in z]
        prototypes = moving.prototypes.clone()  # those of this batch, which the gradient needs after they have moved
        function = network.speed.of(novel_loss, len(pixels))
        loss, called, alike = function(*projected, labels, prototypes, frozen, ramp, p)
        with torch.no_grad():
            places = torch.rand(len(pixels), generator=order, device=device).argsort()
            moves = (called >= frozen) | (torch.arange(len(pixels), device=device) >= n)
            moving.follow(unit(projected[0]), called, moves, places, p.momentum)
        return Batch(torch.cat(views), torch.cat(z), loss, {"novel_like": alike})

    return step


def novel_loss(
    one: Tensor, two: Tensor, labels: Tensor, prototypes: Tensor, known: int, ramp: Tensor, p: OpenCon
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of OpenCon, the labels and pseudo-labels (n + m,) behind it, and the share of images called novel.

    Args:
        one: (n + m, d), the first view of n unlabelled and then m labelled images.
        two: the second view of the same images.
        labels: (m,) known classes.
        prototypes: (c, d) of length 1, those of ``known`` classes first.
        known: how many classes are known.
        ramp: how much of the weight of pseudo-labels is reached.
        p: weights and temperatures.
    """
    one, two, n = unit(one), unit(two), len(one) - len(labels)
    similar = one @ prototypes.T
    pseudo, novel = pseudo_labels(similar.detach(), n, known, p.percentile)
    views, numbers = torch.cat([one[:n], two[:n]]), torch.arange(n, device=one.device)
    loss = p.views * label_contrastive_loss(views, numbers.repeat(2), p.views_temperature)
    loss = loss + p.pseudo * ramp * label_contrastive_loss(
        views, pseudo.repeat(2), p.pseudo_temperature, novel.repeat(2)
    )
    if len(labels):
        both = torch.cat([one[n:], two[n:]])
        loss = loss + p.labels * label_contrastive_loss(both, labels.repeat(2), p.labels_temperature)
    prior = torch.ones_like(similar[0])
    prior[:known] = p.unlabelled_known
    loss = loss + p.prior * prior_divergence(10 * similar[:n], prior)
    return loss, torch.cat([pseudo, labels]), novel.float().mean()


def pseudo_labels(similar: Tensor, n: int, known: int, percentile: float) -> tuple[Tensor, Tensor]:
    """The nearest prototype of each of the first n images, and which of them are novel-like, (n,) each.

    Novel-like are those whose largest known similarity, standardised over prototypes, is below this percentile of the
    labelled ones', or all without labelled ones. Of them the nearest *novel* prototype counts.
    """
    if len(similar) == n:
        return similar[:, known:].argmax(dim=1) + known, torch.ones(n, dtype=torch.bool, device=similar.device)
    spread = similar.std(dim=1, keepdim=True).clamp_min(torch.finfo(similar.dtype).tiny)
    score = ((similar - similar.mean(dim=1, keepdim=True)) / spread)[:, :known].amax(dim=1)
    novel = score[:n] < quantile(score[n:], percentile)
    return torch.where(novel, similar[:n, known:].argmax(dim=1) + known, similar[:n].argmax(dim=1)), novel


def quantile(values: Tensor, at: float) -> Tensor:
    """The value below which a share ``at`` of the values lies, linear in between."""
    ordered, place = values.sort().values, at * (len(values) - 1)
    below = int(place)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(values) - 1)], place - below)
