"""IIC, in a federation: one space of labels, with known and novel classes apart in it.

Paper: Li et al., *Modeling Inter-Class and Intra-Class Constraints in Novel Class Discovery*, CVPR 2023. Rows and
features have length 1. Each of two views predicts a target made from the other: the label of a known image, and for
novel images Sinkhorn's assignment to rows of equal mass. The inter-class term drives predictions for known and novel
images apart, the intra-class term draws those for two views of an image together.

Needs unlabelled images at the sites and, in the novel stage too, half of each site's labelled ones; model vectors
leave them. Departures (docs/departures.md): one novel head, on the features themselves (``full``: several and
over-clustering ones, of which the first is the model's); rows of known classes stay frozen; to each unlabelled image
of a batch a labelled one is drawn; two views of full size and no small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import pad

from asterism.algorithms.anchor import released
from asterism.algorithms.labelled import given, labelled_draws
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.stage import Plan, advanced, begun, sent, training
from asterism.companion import Companion, fresh
from asterism.config import Section, with_preset
from asterism.data.augment import two_views
from asterism.flow import Flow, Options, Reply, State, Tensors, Total
from asterism.losses import unit
from asterism.memory import novel_share
from asterism.site import Share, Site
from asterism.training import Batch, Step
from asterism.transport import sinkhorn

FULL = {"heads": 4, "overcluster": 5}


class Iic(Section):
    """Settings of IIC; where a preset says otherwise than the defaults, the preset's value holds."""

    name: Literal["iic"] = "iic"
    preset: Literal["paper", "full"] = "paper"
    known_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # of a participant's known images, which the method is given
    labelled: Annotated[float, Field(gt=0)] = 1.0  # of those, how many are drawn to each unlabelled image
    beta: Annotated[float, Field(ge=0, le=1)] = 0.0  # β, Eq. 10: no forgetting compensation, as known images are there
    temperature: Annotated[float, Field(gt=0)] = 0.1
    epsilon: Annotated[float, Field(gt=0)] = 0.05  # of Sinkhorn
    iterations: Annotated[int, Field(ge=1)] = 3  # of Sinkhorn
    inter: Annotated[float, Field(ge=0)] = 0.02  # weight of the divergence between known and novel images
    intra: Annotated[float, Field(ge=0)] = 0.01  # weight of the divergence between two views
    heads: Annotated[int, Field(ge=1)] = 1  # full: 4
    overcluster: Annotated[int, Field(ge=0)] = 0  # rows per novel class of an over-clustering head; full: 5

    _filled = model_validator(mode="before")(with_preset(FULL))

    def further_rows(self, novel: int) -> int:
        """Rows of all heads beside the model's own, for so many novel classes."""
        return novel * (self.heads - 1 + self.heads * self.overcluster)


def novel_stage(state: State, everyone: Sequence[str], p: Iic, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by IIC."""
    state = yield from begun(state, everyone, setup, plan)
    if state.round == 0:
        state = with_unit_rows(with_further_heads(state, p, setup), setup)
    while state.round < plan.rounds:
        total: Total = yield training(state, everyone, setup, plan.rounds, "iic", p, sent(state, "joint"))
        state = with_unit_rows(advanced(state, total, everyone, setup, beta=p.beta), setup)
        yield state
    return released(state)


def with_further_heads(state: State, p: Iic, setup: Setup) -> State:
    """The state with the rows of the heads beside the model's own, where there are any."""
    count = p.further_rows(novel_rows(state, setup))
    if count == 0:
        return state
    rows = fresh(partial(further_heads, setup.layout.features, count), setup.seed, state.stage)
    return replace(state, tensors={**state.tensors, "companion": rows.to(state.tensors["parameters"])})


def with_unit_rows(state: State, setup: Setup) -> State:
    """The state with novel rows of length 1, and the joint reading that IIC trains: all rows of length 1."""
    parameters = state.tensors["parameters"].clone()
    rows = setup.layout.with_rows(len(state.classes)).head(parameters)
    frozen = len(rows) - novel_rows(state, setup)
    rows[frozen:] = unit(rows[frozen:])
    tensors = {**state.tensors, "parameters": parameters, "joint": unit(rows)}
    if "companion" in tensors:
        tensors["companion"] = unit(tensors["companion"].view(-1, setup.layout.features)).flatten()
    return replace(state, tensors=tensors)


def novel_rows(state: State, setup: Setup) -> int:
    """How many rows the stage has added to the head."""
    return (len(state.tensors["parameters"]) - len(state.tensors["anchor"])) // setup.layout.features


def further_heads(features: int, count: int) -> nn.Module:
    """The rows of all heads beside the model's own."""
    return nn.Linear(features, count, bias=False)


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of IIC on its own unlabelled images, and on the labelled ones that it is given."""
    local, p = told(options, Iic)
    frozen, known, companion = int(options["frozen"]), given(site, local.seed, p.known_share), None
    if "companion" in tensors:
        features = site.worker.layout.features
        count = tensors["companion"].numel() // features
        companion = site.worker.companion(f"iic {count}", partial(further_heads, features, count))
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: novel_step(site, local, p, frozen, known, companion),
        program=f"iic {options['method']} {len(known) > 0}",
        frozen_rows=frozen,
        companion=companion,
        kept=1 - p.beta,
    )


def novel_step(site: Site, local: Local, p: Iic, frozen: int, known: Share, companion: Companion | None) -> Step:
    """The step of IIC on one mini-batch: labelled images to the unlabelled, two views, represent, the three terms."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    drawing = site.worker.generator(local.seed, "labelled", local.stage, local.round, site.name)
    draw = labelled_draws(site, known, drawing)

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        labels = targets[:0]
        if draw is not None:
            more, labels = draw(max(1, round(p.labelled * len(pixels))))
            pixels = torch.cat([pixels, more])
        one, two = two_views(pixels, local.augment, rng)
        # View by view, as the original has it: each by the statistics of its own batch, of known and novel images.
        views = network.represent(one), network.represent(two)
        rows = network.prototypes
        further = rows[:0] if companion is None else companion.named[0]
        function = network.speed.of(novel_loss, len(one))
        loss = function(*views, rows[:frozen].detach(), split(rows[frozen:], further, p), labels, p)
        return Batch(torch.cat([one, two]), torch.cat(views), loss)

    return step


def split(own: Tensor, further: Tensor, p: Iic) -> list[Tensor]:
    """The novel rows of every head: the model's own, others of its size, then the over-clustering ones."""
    large = [len(own) * p.overcluster] * p.heads if p.overcluster else []
    return [own, *torch.split(further, [len(own)] * (p.heads - 1) + large)]


def novel_loss(one: Tensor, two: Tensor, known: Tensor, heads: Sequence[Tensor], labels: Tensor, p: Iic) -> Tensor:
    """The loss of IIC: swapped prediction − inter·divergence of known from novel + intra·divergence of the views.

    Args:
        one: (n + m, d), the first view of n unlabelled and then m labelled images.
        two: the second view of the same images.
        known: rows of the known classes.
        heads: novel rows of each head; those after the first ``p.heads`` are for over-clustering.
        labels: (m,) known classes.
        p: weights and temperatures.
    """
    one, two = unit(one), unit(two)
    found = [head_terms(one, two, unit(known), unit(novel), labels, p) for novel in heads]
    swapped, constraint = (torch.stack(terms) for terms in zip(*found, strict=True))
    discovering, over = swapped[: p.heads].mean(), swapped[p.heads :]
    if p.overcluster:
        discovering = (discovering + over.mean()) / 2
    return discovering + constraint[: p.heads].mean()


def head_terms(one: Tensor, two: Tensor, known: Tensor, novel: Tensor, labels: Tensor, p: Iic) -> tuple[Tensor, Tensor]:
    """Swapped prediction, and the weighted sum of the inter- and the intra-class term, by one head; rows of length 1.

    Arguments as those of ``novel_loss``.
    """
    n, rows = len(one) - len(labels), torch.cat([known, novel])
    views = one @ rows.T, two @ rows.T
    targets = [target(view, labels, len(known), p) for view in views]
    logits = [view / p.temperature for view in views]
    predicted = [view.log_softmax(dim=1) for view in logits]
    swapped = -(targets[0] * predicted[1] + targets[1] * predicted[0]).sum(dim=1).mean() / 2
    constraint = p.intra * views_divergence(*(view[:n, len(known) :] for view in logits))
    if len(labels):
        apart = torch.stack([pairs_divergence(view[:n], view[n:]) for view in predicted]).mean()
        together = views_divergence(*(view[n:, : len(known)] for view in logits))
        constraint = constraint + p.intra * together - p.inter * apart
    return swapped, constraint


def target(cosines: Tensor, labels: Tensor, known: int, p: Iic) -> Tensor:
    """What a view (n + m, c) asks of the other: Sinkhorn over novel rows for n images, their labels for the last m."""
    novel = sinkhorn(cosines[: len(cosines) - len(labels), known:], p.epsilon, p.iterations)
    hot = torch.eye(cosines.shape[1], device=cosines.device, dtype=novel.dtype)[labels]
    return torch.cat([pad(novel, (known, 0)), hot])


def pairs_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Mean over all pairs (i, j) of ½(KL(p_i‖q_j) + KL(q_j‖p_i)), from log-probabilities (n, c) and (m, c).

    A pair's cross terms are products, whose mean over all pairs is the product of two means: no pair is ever formed.
    """
    p, q = log_p.exp(), log_q.exp()
    own = (p * log_p).sum(dim=1).mean() + (q * log_q).sum(dim=1).mean()
    return (own - p.mean(dim=0) @ log_q.mean(dim=0) - q.mean(dim=0) @ log_p.mean(dim=0)) / 2


def views_divergence(one: Tensor, two: Tensor) -> Tensor:
    """Mean over images of ½(KL(p‖q) + KL(q‖p)), of the predictions by two views' logits (n, c)."""
    log_p, log_q = one.log_softmax(dim=1), two.log_softmax(dim=1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1).mean() / 2
