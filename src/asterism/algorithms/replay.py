"""Statistics of the classes before a stage, and features drawn from them: what iNCD remembers in place of images.

Sites send sums, sums of squares and counts of their representations by class, of which only the total is seen. The
state then keeps the mean of each class and one deviation for all, and adds those of newer classes as stages go on:

- ``class_means`` (c, d) and ``class_found`` (c,), which is false for classes of which nobody has an image;
- ``class_deviation`` (d,), per feature the mean of the standard deviations within the classes that were found;
- ``class_stages`` (1,), the number of the first novel stage that they do not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from asterism.algorithms.anchor import DISCOVERED, frozen_rows, model
from asterism.algorithms.local import Local, Setup
from asterism.algorithms.represent import represented
from asterism.data.split import KNOWN
from asterism.errors import AsterismError
from asterism.evaluation import labelled
from asterism.flow import Ask, Options, Reply, State, Sum, Tensors, Total
from asterism.memory import novel_share
from asterism.site import Site

NOVEL = "novel-"  # of a stage's name, before its number


def with_class_statistics(state: State, everyone: Sequence[str], setup: Setup) -> Generator[Ask, Any, State]:
    """The state with statistics of every class that it had before this stage; those it has already are kept."""
    first, classes = len(state.tensors.get("class_means", ())), frozen_rows(state, setup)
    stage = int(state.stage.removeprefix(NOVEL))
    options: Options = {
        "first": first,
        "known": sum(DISCOVERED.fullmatch(name) is None for name in state.classes),
        "classes": classes,
        "stages": ",".join(f"{NOVEL}{n}" for n in range(int(state.tensors.get("class_stages", 1)), stage)),
    }
    total: Total = yield Sum(tuple(everyone), "class-statistics", model(state), state.version, options)
    if total.weight == 0:
        raise AsterismError(
            "no participant has images of the classes before this stage, whose features iNCD replays",
            where=f"the stage {state.stage}",
            fix="take another method, or do without: novel.N.algorithm.replay=0",
        )
    added = {**extended(state.tensors, total.tensors), "class_stages": torch.tensor([stage])}
    return replace(state, tensors={**state.tensors, **added})


def send_statistics(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Sums, sums of squares and counts of a participant's representations, by class.

    Known images go by their label, those of earlier novel stages by the largest of the rows that stand for them.
    """
    first, known, classes = (int(options[name]) for name in ("first", "known", "classes"))
    site.worker.load(tensors)
    found, start = [], max(first, known)
    if first < known:
        share = site.share(KNOWN)
        share = replace(share, indices=labelled(share))
        found.append((represented(site.worker, share), share.targets[share.indices]))
    for stage in filter(None, str(options["stages"]).split(",")):
        z = represented(site.worker, novel_share(site, stage))
        rows = site.worker.network.prototypes.detach()[start:classes]
        found.append((z, start + (z @ rows.T).argmax(dim=1)))
    z, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    if len(z) == 0:
        return Reply({}, weight=0.0)
    return Reply(class_sums(z, labels - first, classes - first), metrics={"samples": float(len(z))})


def class_sums(z: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """Sums and sums of squares (c, d) and counts (c,) of representations, in float64; they add up over sites."""
    z = z.double()
    members = one_hot(labels, classes).to(z)
    return {"sums": members.T @ z, "squares": members.T @ z.square(), "counts": members.sum(dim=0)}


def moments(sums: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations (c, d) of each class; zeros for one without images."""
    number = counts[:, None].clamp_min(1)
    means = sums / number
    return means, (squares / number - means.square()).clamp_min(0).sqrt()


def extended(kept: Tensors, total: Tensors) -> dict[str, Tensor]:
    """The kept class statistics with those of newer classes, from the total of ``class_sums``."""
    means, deviations = moments(total["sums"], total["squares"], total["counts"])
    found = total["counts"] > 0
    deviation = deviations[found].sum(dim=0)
    if "class_means" not in kept:
        kept = {"class_means": means[:0].float(), "class_found": found[:0], "class_deviation": means.new_zeros(())}
    earlier = kept["class_found"].to(found.device)
    deviation = deviation + earlier.sum() * kept["class_deviation"].to(deviation)
    found = torch.cat([earlier, found])
    return {
        "class_means": torch.cat([kept["class_means"].to(found.device), means.float()]),
        "class_found": found,
        "class_deviation": (deviation / found.sum().clamp_min(1)).float(),
    }


def replaying(site: Site, local: Local, tensors: Tensors, each: int) -> Callable[[Tensor], Tensor]:
    """The cross entropy of a head (c, d) on ``each`` so many features drawn for every class that was found."""
    found = tensors["class_found"]
    means = site.worker.hold("class means", tensors["class_means"][found])
    labels = site.worker.hold("class labels", found.nonzero().flatten())
    deviation = site.worker.hold("class deviation", tensors["class_deviation"])
    rng = site.worker.generator(local.seed, "replay", local.stage, local.round, site.name)

    def loss(head: Tensor) -> Tensor:
        noise = torch.randn((each, *means.shape), generator=rng, device=means.device)
        return replay_loss(means, deviation, noise, labels, head)

    return loss


def replay_loss(means: Tensor, deviation: Tensor, noise: Tensor, labels: Tensor, head: Tensor) -> Tensor:
    """Cross entropy of a head on μ_c + σ̄·noise, with noise (r, c, d): r features of each class."""
    features = (means + deviation * noise).flatten(0, 1)
    return cross_entropy(features @ head.T, labels.repeat(len(noise)))
