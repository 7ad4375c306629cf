"""iNCD (FRoST), in a federation: a novel head learns by pairs and teaches a joint head, old classes are replayed.

Paper: Roy et al., *Class-incremental Novel Class Discovery*, ECCV 2022. The novel rows learn by pairwise cross entropy
and rank statistics over two views; a joint head over all classes, the method's ``companion``, learns their arg-max as
pseudo-labels and features drawn from the statistics of earlier classes; the extractor is held by distilling features.

Needs unlabelled images at the sites and, once, statistics of earlier classes: sums, sums of squares and counts by
class, of known classes from labelled images, of earlier novel ones from the images of their stage. Model vectors and
those leave a site. The joint reading is that of the joint head. Departures (docs/departures.md): heads without bias;
the whole extractor is trained, where the original holds its stem and first stage still.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from asterism.algorithms.anchor import frozen_rows, released
from asterism.algorithms.discover import random_rows
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.remember import reference
from asterism.algorithms.replay import replaying, with_class_statistics
from asterism.algorithms.stage import Plan, advanced, begun, training
from asterism.companion import Companion
from asterism.config import Section
from asterism.data.augment import two_views
from asterism.flow import Ask, Flow, Options, Reply, State, Tensors, Total
from asterism.losses import two_view_loss
from asterism.memory import novel_share
from asterism.seeds import generator
from asterism.site import Site
from asterism.training import Batch, Step, ramp_up

BEFORE = "joint_before"  # the joint head of an earlier stage, until that of this stage begins from it


class Incd(Section):
    """Settings of iNCD. Defaults are those of its authors' code."""

    name: Literal["incd"] = "incd"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.0  # β, Eq. 10: the extractor is not drawn back
    top: Annotated[int, Field(ge=1)] = 5  # features whose ranks are compared
    consistency: Annotated[float, Field(ge=0)] = 25.0  # λ of the two views' squared difference
    ramp: Annotated[float, Field(gt=0)] = 1.0  # share of the rounds over which λ and self-training are reached
    self_training: Annotated[float, Field(ge=0)] = 0.01  # weight of the joint head's pseudo-labels
    replay: Annotated[float, Field(ge=0)] = 1.0  # weight of drawn features
    drawn: Annotated[int, Field(ge=1)] = 2  # features drawn for each earlier class and batch
    distillation: Annotated[float, Field(ge=0)] = 10.0  # weight of the features' distance from m^L's


def novel_stage(state: State, everyone: Sequence[str], p: Incd, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by iNCD."""
    state = yield from begun(with_joint_before(state), everyone, setup, plan)
    if "companion" not in state.tensors:
        state = yield from with_joint_head(state, everyone, p, setup)
        yield state
    while state.round < plan.rounds:
        total: Total = yield training(state, everyone, setup, plan.rounds, "incd", p, sent(state))
        state = read(advanced(state, total, everyone, setup, beta=p.beta))
        yield state
    return released(state)


def with_joint_before(state: State) -> State:
    """The state with the joint head of an earlier stage under a name that outlives the growing of the head."""
    if "anchor" in state.tensors or "joint" not in state.tensors:
        return state
    return replace(state, tensors={**state.tensors, BEFORE: state.tensors["joint"]})


def with_joint_head(state: State, everyone: Sequence[str], p: Incd, setup: Setup) -> Generator[Ask, Any, State]:
    """The state with class statistics and a joint head: rows of earlier classes as they were, new ones at random."""
    if p.replay:
        state = yield from with_class_statistics(state, everyone, setup)
    frozen = frozen_rows(state, setup)
    rows = setup.layout.with_rows(len(state.classes)).head(state.tensors["parameters"])[:frozen]
    before = state.tensors.get(BEFORE, rows)
    new = random_rows(len(state.classes) - frozen, rows.shape[1], generator(setup.seed, "joint rows", state.stage))
    tensors = {name: value for name, value in state.tensors.items() if name != BEFORE}
    return read(replace(state, tensors={**tensors, "companion": torch.cat([before, new.to(before)]).flatten()}))


def read(state: State) -> State:
    """The state with its companion as the head of the joint reading."""
    joint = state.tensors["companion"].view(len(state.classes), -1)
    return replace(state, tensors={**state.tensors, "joint": joint})


def sent(state: State) -> Tensors:
    """What a client needs: everything but a second copy of the joint head."""
    return {name: value for name, value in state.tensors.items() if name != "joint"}


def train_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of iNCD on its own unlabelled images."""
    local, p = told(options, Incd)
    frozen, features = int(options["frozen"]), site.worker.layout.features
    rows = len(tensors["companion"]) // features
    joint = site.worker.companion(f"joint head {rows}", lambda: nn.Linear(features, rows, bias=False))
    return train_share(
        site,
        tensors,
        local,
        novel_share(site, local.stage),
        lambda: novel_step(site, local, p, tensors, frozen, joint),
        program=f"incd {options['method']}",
        frozen_rows=frozen,
        companion=joint,
        kept=1 - p.beta,
    )


def novel_step(site: Site, local: Local, p: Incd, tensors: Tensors, frozen: int, joint: Companion) -> Step:
    """The step of iNCD on one mini-batch: two views, pairs, self-training, replay, distillation of features."""
    network, (head,) = site.worker.network, joint.named
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)
    ramp = site.worker.hold("ramp", torch.tensor(ramp_up(local.progress / p.ramp)))
    replay = replaying(site, local, tensors, p.drawn) if p.replay else None
    teacher = reference(site, "anchor", tensors) if p.distillation else None

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = torch.cat(two_views(pixels, local.augment, rng))
        z, rows = network.represent(images), network.prototypes[frozen:]
        first = z[: len(pixels)]
        loss, alike = network.speed.of(two_view_loss, len(z))(z, rows, p.top, p.consistency * ramp)
        loss = loss + p.self_training * ramp * self_training_loss(first, rows, head)
        if replay is not None:
            loss = loss + p.replay * replay(head)
        if teacher is not None:
            with torch.no_grad():
                before = teacher.represent(images[: len(pixels)])
            loss = loss + p.distillation * matrix_distance(first, before)
        return Batch(images, z, loss, {"pairs_alike": alike})

    return step


def self_training_loss(z: Tensor, rows: Tensor, head: Tensor) -> Tensor:
    """Cross entropy of a joint head (c, d) to the novel class that the novel ``rows``, its last, see in z (n, d)."""
    found = (z @ rows.T).detach().argmax(dim=1)
    return cross_entropy(z @ head.T, len(head) - len(rows) + found)


def matrix_distance(z: Tensor, before: Tensor) -> Tensor:
    """Euclidean distance of two matrices of features (n, d), each as one vector of length 1; between 0 and 2."""
    distance: Tensor = torch.linalg.vector_norm(_whole_unit(z) - _whole_unit(before))
    return distance


def _whole_unit(matrix: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(matrix)
    return matrix / length.masked_fill(length == 0, 1.0)
