"""From unlabelled images at the sites to new rows of the head: lines 1 to 14 of the paper's Algorithm 1.

Every participant clusters the representations of its images and sends the centres and sizes, once; the server pools
them, estimates how many classes there are, and clusters the pool into that many global prototypes. All methods of
novel class learning can start from here; GAL does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from asterism.algorithms.anchor import grown, model
from asterism.algorithms.local import Setup
from asterism.algorithms.represent import represented
from asterism.config import Section
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS, AnyEstimator, Pool, Ppm
from asterism.flow import Answers, Ask, Collect, Options, Reply, State, Sum, Tensors, Total
from asterism.memory import novel_share
from asterism.prototypes import global_prototypes, lloyd_step, local_prototypes, moved
from asterism.seeds import generator, number
from asterism.site import Share, Site

Initial = Literal["prototypes", "random"]


class Discovery(Section):
    """How new classes are counted and where their rows begin. Defaults are the paper's."""

    clusters: Annotated[int, Field(ge=0)] = 0  # local prototypes per participant; 0: one per head row, C^L
    floor: Annotated[int, Field(ge=0)] = 0  # least images behind a prototype that leaves a site
    estimator: AnyEstimator = Ppm()
    classes: Annotated[int, Field(ge=1)] | None = None  # C^U where it is given instead of estimated
    weighted: bool = False  # prototypes count by the size of their cluster
    lloyd_rounds: Annotated[int, Field(ge=0)] = 0  # of exact federated K-means after the merge
    initial: Initial | None = None  # "+init" or without it; None: as the method does


def discover(
    state: State, everyone: Sequence[str], p: Discovery, setup: Setup, initial: Initial = "prototypes"
) -> Generator[Ask, Any, State]:
    """The state with its head grown by one row a new class; comments name the lines of Algorithm 1.

    Rows begin as the global prototypes, or at random where the settings or else the method (``initial``) say so. No
    prototype leaves a site that neither the count nor the rows need.
    """
    at_random = (p.initial or initial) == "random"
    rng = generator(setup.seed, "random rows", state.stage)
    if at_random and p.classes:
        return grown(state, random_rows(p.classes, setup.layout.features, rng), setup)
    rows = yield from global_rows(state, everyone, p, setup)
    return grown(state, random_rows(len(rows), setup.layout.features, rng) if at_random else rows, setup)


def global_rows(state: State, everyone: Sequence[str], p: Discovery, setup: Setup) -> Generator[Ask, Any, Tensor]:
    """The global prototypes (count, d): Potential Prototype Merge."""
    options: Options = {
        "stage": state.stage,
        "clusters": p.clusters or len(state.classes),
        "floor": p.floor,
        "seed": setup.seed,
    }
    answers: Answers = yield Collect(tuple(everyone), "prototypes", model(state), state.version, options)  # 1-4
    pool, sizes = pooled(answers)  # 6
    known = setup.layout.with_rows(len(state.classes)).head(state.tensors["parameters"]).cpu().numpy()
    everything = Pool.of(pool, sizes, known=known, seed=number(setup.seed, "estimate", state.stage))
    count = p.classes or ESTIMATORS[p.estimator.name].count(everything, p.estimator).count  # 7-13
    seed = number(setup.seed, "global prototypes", state.stage)
    weights = sizes if p.weighted else None
    rows = torch.from_numpy(global_prototypes(pool, min(count, len(pool)), seed=seed, weights=weights))  # 14
    for _ in range(p.lloyd_rounds):
        rows = yield from lloyd_round(state, everyone, rows)
    return rows.float()


def lloyd_round(state: State, everyone: Sequence[str], rows: Tensor) -> Generator[Ask, Any, Tensor]:
    """One exact K-means step over every image of the federation: sites send sums and counts per row."""
    tensors = {**model(state), "centres": rows}
    total: Total = yield Sum(tuple(everyone), "lloyd", tensors, state.version, {"stage": state.stage})
    if total.weight == 0:
        return rows
    sums, counts = total.tensors["sums"].cpu().numpy(), total.tensors["counts"].cpu().numpy()
    return torch.from_numpy(moved(sums, counts, rows.numpy()))


def pooled(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Every participant's prototypes and cluster sizes, in the order of participants."""
    found = [reply.tensors for reply in answers.replies.values() if reply.weight > 0]
    if not found:
        raise AsterismError(
            "no participant has novel images to make prototypes of",
            where="the novel stage",
            fix="look at the screening threshold, the floor on prototypes, and the split",
        )
    pool = np.concatenate([tensors["centres"].cpu().numpy() for tensors in found])
    return pool, np.concatenate([tensors["sizes"].cpu().numpy() for tensors in found])


def random_rows(count: int, features: int, rng: torch.Generator) -> Tensor:
    """Rows as a freshly made linear layer would have them."""
    bound = features**-0.5
    return torch.empty(count, features).uniform_(-bound, bound, generator=rng)


def send_prototypes(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Cluster centres of a participant's unlabelled images; asked again, it sends the same bytes again."""
    stage = str(options["stage"])
    key, share = f"prototypes/{stage}", novel_share(site, stage)
    if key not in site.store:
        z = as_sent(site, tensors, share)
        seed = number(int(options["seed"]), "local prototypes", stage, site.name)
        found = local_prototypes(z, int(options["clusters"]), seed=seed, floor=int(options["floor"]))
        site.store[key] = {"centres": torch.from_numpy(found.centres), "sizes": torch.from_numpy(found.sizes)}
    kept = site.store[key]
    return Reply(kept, float(len(kept["centres"]) > 0), {"samples": float(len(share))})


def assign(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Sums and counts of a participant's representations by their nearest centre."""
    share = novel_share(site, str(options["stage"]))
    if len(share) == 0:
        return Reply({}, weight=0.0)
    sums, counts = lloyd_step(as_sent(site, tensors, share), tensors["centres"].cpu().numpy())
    found = {"sums": torch.from_numpy(sums), "counts": torch.from_numpy(counts).to(torch.float64)}
    return Reply(found, metrics={"samples": float(len(share))})


def as_sent(site: Site, tensors: Tensors, share: Share) -> np.ndarray:
    """Representations (n, d) of a share's images, as the sent model gives them."""
    site.worker.load(tensors)
    return represented(site.worker, share).cpu().numpy()
