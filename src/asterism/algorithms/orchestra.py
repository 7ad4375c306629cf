"""Orchestra, in a federation that must not forget: clusterings that all sites agree on tune the extractor.

Paper: Lubana et al., *Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering*, ICML 2022. Every
round its clients cluster the projections of some of their images and send the centroids, which the server clusters into
global ones. Then they train: one view of an image is to be assigned to global centroids as a slowly following target
network assigns another view, and a third view tells by which quarter it was turned. The seed paper adds EMA (Eq. 10),
then freezes the extractor and trains the novel rows by the pairwise loss (Eq. 11): here in the last third of rounds.

Needs unlabelled images at the sites. What leaves one: unit centroids of projections every round of tuning; vectors of
model, projector and target network. Departures (docs/departures.md): clients cluster before they train, by the target
network that was sent, so that all centroids lie in one space; the seed paper's 30 rounds come before those of the head.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from asterism.algorithms.anchor import ema, frozen_rows, released
from asterism.algorithms.local import Local, Setup, told, train_share
from asterism.algorithms.stage import Plan, advanced, begun, training
from asterism.algorithms.target import TURNS, Projector, Target, projector_of
from asterism.centroids import global_centroids, local_centroids
from asterism.companion import fresh
from asterism.config import Section, with_preset
from asterism.data.augment import augment, quarter_turns, two_views
from asterism.flow import Answers, Ask, Collect, Flow, Options, Reply, State, Sum, Tensors, Total
from asterism.losses import assignment_loss, pairwise_loss, same_ranking
from asterism.memory import novel_share
from asterism.seeds import generator
from asterism.site import Site
from asterism.training import Batch, Step, learning_rate

FULL = {"global_clusters": 128}
OWN = ("target", "centroids")  # tensors of the state, beside the companion


class Orchestra(Section):
    """Settings of Orchestra; where a preset says otherwise than the defaults, the preset's value holds."""

    name: Literal["orchestra"] = "orchestra"
    preset: Literal["paper", "full"] = "paper"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.99  # β, Eq. 10
    head: Annotated[float, Field(gt=0, le=1)] = 1 / 3  # share of the rounds, the last, that train the novel rows
    lr_factor: Annotated[float, Field(gt=0)] = 0.6  # of train.lr while tuning: 0.03
    temperature: Annotated[float, Field(gt=0)] = 0.1  # T of both assignments
    following: Annotated[float, Field(ge=0, le=1)] = 0.996  # what the target network keeps of itself in a step
    turning: Annotated[float, Field(ge=0)] = 1.0  # weight of telling quarter turns
    width: Annotated[int, Field(ge=1)] = 512  # of projections
    memory: Annotated[int, Field(ge=2)] = 128  # images that a client clusters
    local_clusters: Annotated[int, Field(ge=1)] = 16
    global_clusters: Annotated[int, Field(ge=1)] = 64  # at least, and two a novel class; full: 128
    server_steps: Annotated[int, Field(ge=0)] = 500  # of SGD, by which global centroids are fitted
    top: Annotated[int, Field(ge=1)] = 5  # features whose ranks are compared

    _filled = model_validator(mode="before")(with_preset(FULL))

    def tuning(self, rounds: int) -> int:
        """How many of a stage's rounds tune the extractor; at least one is left for the novel rows."""
        return rounds - max(1, round(self.head * rounds))


def novel_stage(state: State, everyone: Sequence[str], p: Orchestra, setup: Setup, plan: Plan) -> Flow:
    """Novel class learning by Orchestra: the extractor is tuned, then stays, and the novel rows learn."""
    state = yield from begun(state, everyone, setup, plan)
    total: Total
    while state.round < p.tuning(plan.rounds):
        state = yield from clustered(opened(state, p, setup), everyone, p, setup, plan.discovery.floor)
        total = yield tuning(state, everyone, setup, plan.rounds, p)
        state = advanced(state, total, everyone, setup, beta=p.beta)
        if total.weight:
            state = drawn_back(state, p, setup)
        yield state
    while state.round < plan.rounds:
        total = yield training(state, everyone, setup, plan.rounds, "orchestra-head", p, released(state, *OWN).tensors)
        state = advanced(state, total, everyone, setup, beta=1.0, anchor="previous", batch_statistics=False)
        yield state
    return released(state, *OWN)


def opened(state: State, p: Orchestra, setup: Setup) -> State:
    """The state with a fresh projector, the target network equal to the online one, and random unit centroids."""
    if "centroids" in state.tensors:
        return state
    parameters, features = state.tensors["parameters"], setup.layout.features
    companion = fresh(lambda: Projector(features, p.width), setup.seed, state.stage).to(parameters)
    count = max(2 * (len(state.classes) - frozen_rows(state, setup)), p.global_clusters)
    drawn = torch.randn(count, p.width, generator=generator(setup.seed, "centroids", state.stage))
    own = {
        "companion": companion,
        "target": torch.cat([parameters[: setup.layout.extractor_size], companion]),
        "centroids": normalize(drawn, dim=1).to(parameters),
    }
    return replace(state, tensors={**state.tensors, **own})


def clustered(
    state: State, everyone: Sequence[str], p: Orchestra, setup: Setup, floor: int
) -> Generator[Ask, Any, State]:
    """The state with its global centroids fitted to the local ones of the round's clients, if they have any."""
    options: Options = {
        "method": p.model_dump_json(), "stage": state.stage, "round": state.round, "seed": setup.seed, "floor": floor,
    }  # fmt: skip
    sent = {name: state.tensors[name] for name in ("target", "buffers", "counters")}
    clients = setup.clients(everyone, state)
    answers: Answers = yield Collect(clients, "orchestra-centroids", sent, state.version, options)
    found = [reply.tensors["centroids"].cpu() for reply in answers.replies.values() if reply.weight > 0]
    if not found:
        return state
    start = state.tensors["centroids"]
    centroids = global_centroids(torch.cat(found), start.cpu(), p.temperature, p.server_steps).to(start)
    return replace(state, tensors={**state.tensors, "centroids": centroids})


def tuning(state: State, everyone: Sequence[str], setup: Setup, rounds: int, p: Orchestra) -> Sum:
    """The ask of a round of tuning, in which no row of the head moves."""
    sent = {**released(state).tensors, "companion": state.tensors["companion"]}
    ask = training(state, everyone, setup, rounds, "orchestra", p, sent)
    return replace(ask, options={**ask.options, "frozen": len(state.classes)})


def drawn_back(state: State, p: Orchestra, setup: Setup) -> State:
    """The state with the target network's extractor held near m^L as the online one is."""
    size = setup.layout.extractor_size
    target, anchor = state.tensors["target"], state.tensors["anchor"]
    held = torch.cat([ema(anchor[:size], target[:size], p.beta), target[size:]])
    return replace(state, tensors={**state.tensors, "target": held})


def send_centroids(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Centroids of the projections of some of a client's unlabelled images, by the target network that was sent."""
    p, stage = Orchestra.model_validate_json(str(options["method"])), str(options["stage"])
    share = novel_share(site, stage)
    if len(share) == 0:
        return Reply({}, weight=0.0)
    rng = generator(int(options["seed"]), "local centroids", stage, options["round"], site.name)
    chosen = torch.randperm(len(share), generator=rng)[: p.memory].to(share.indices.device)
    target = Target.of(site.worker, p.width)
    target.load(tensors, len(chosen))
    z = target.directions(replace(share, indices=share.indices[chosen]))
    found = local_centroids(z, p.local_clusters, rng, floor=int(options["floor"]))
    return Reply({"centroids": found}, float(len(found) > 0), {"samples": float(len(z))})


def ordered(options: Options) -> tuple[Local, Orchestra]:
    """What a client is told; in either phase, the learning rate runs over the rounds of that phase."""
    local, p = told(options, Orchestra)
    tuned = p.tuning(local.rounds)
    if local.round < tuned:
        lr = p.lr_factor * learning_rate(local.train, local.round, tuned)
    else:
        lr = learning_rate(local.train, local.round - tuned, local.rounds - tuned)
    return local.model_copy(update={"lr": lr}), p


def tune_locally(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of tuning on its own unlabelled images; the target network follows and is sent, too."""
    local, p = ordered(options)
    share = novel_share(site, local.stage)
    return train_share(
        site,
        tensors,
        local,
        share,
        lambda: tuning_step(site, local, p, tensors, len(share)),
        program=f"orchestra {options['method']}",
        frozen_rows=int(options["frozen"]),
        companion=projector_of(site.worker, p.width, "online"),
        more=lambda: {"target": Target.of(site.worker, p.width).take()},
        kept=1 - p.beta,
    )


def tuning_step(site: Site, local: Local, p: Orchestra, tensors: Tensors, images: int) -> Step:
    """The step of tuning on one mini-batch: three views, the target network follows and assigns, two terms."""
    worker, network = site.worker, site.worker.network
    online, target = projector_of(worker, p.width, "online"), Target.of(worker, p.width)
    target.load(tensors, images)
    centroids = worker.hold("centroids", tensors["centroids"])
    rng = worker.generator(local.seed, "augment", local.stage, local.round, site.name)

    def step(pixels: Tensor, labels: Tensor) -> Batch:
        one, two = two_views(pixels, local.augment, rng)
        turns = torch.randint(TURNS, (len(pixels),), generator=rng, device=pixels.device)
        third = quarter_turns(augment(pixels, local.augment, rng), turns)
        target.follow(worker, online, p.following)
        wanted, z = target.project(one), network.represent(two)
        told = online.module(network.represent(third))[1]
        loss, right = network.speed.of(tuning_loss, len(z))(online.module(z)[0], wanted, centroids, told, turns, p)
        return Batch(two, z, loss, {"turns_right": right})

    return step


def tuning_loss(
    z: Tensor, wanted: Tensor, centroids: Tensor, told: Tensor, turns: Tensor, p: Orchestra
) -> tuple[Tensor, Tensor]:
    """The loss of projections z (n, width) given the target's, and of logits for turns; the share told rightly."""
    loss = assignment_loss(z, wanted, centroids, p.temperature) + p.turning * cross_entropy(told, turns)
    return loss, (told.detach().argmax(dim=1) == turns).float().mean()


def train_head(site: Site, tensors: Tensors, options: Options) -> Reply:
    """One client's round of training the novel rows on representations that no longer change."""
    local, p = ordered(options)
    frozen = int(options["frozen"])
    with site.worker.still():
        return train_share(
            site,
            tensors,
            local,
            novel_share(site, local.stage),
            lambda: head_step(site, local, p, frozen),
            program=f"orchestra-head {options['method']}",
            frozen_rows=frozen,
            batch_statistics=False,
            kept=0.0,
        )


def head_step(site: Site, local: Local, p: Orchestra, frozen: int) -> Step:
    """The step of the novel rows on one mini-batch: two views, represent, pairwise loss."""
    network = site.worker.network
    rng = site.worker.generator(local.seed, "augment", local.stage, local.round, site.name)

    def step(pixels: Tensor, targets: Tensor) -> Batch:
        images = torch.cat(two_views(pixels, local.augment, rng))
        z = network.represent(images)
        loss, alike = network.speed.of(head_loss, len(z))(z, network.prototypes[frozen:], p.top)
        return Batch(images, z, loss, {"pairs_alike": alike})

    return step


def head_loss(z: Tensor, rows: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The pairwise loss (Eq. 11) of two views z (2n, d), and the share of pairs called alike."""
    one, two = (z @ rows.T).softmax(dim=1).chunk(2)
    same = same_ranking(z.chunk(2)[0], top)
    return pairwise_loss(one, same, two), same.float().mean()


TASKS = {"orchestra-centroids": send_centroids, "orchestra": tune_locally, "orchestra-head": train_head}
