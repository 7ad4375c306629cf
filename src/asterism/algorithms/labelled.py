"""Labelled images beside the unlabelled ones, for the methods whose local step learns from both at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from asterism.seeds import generator
from asterism.site import Share, Site

Draw = Callable[[int], tuple[Tensor, Tensor]]


def given(site: Site, seed: int, part: float) -> Share:
    """The part of a participant's known images that a method may use: drawn once, the same in every stage and round."""
    share = site.share("known")
    order = torch.randperm(len(share), generator=generator(seed, "known images given", site.name))
    chosen = order[: round(part * len(share))].sort().values
    return replace(share, indices=share.indices[chosen.to(share.indices.device)])


def labelled_draws(site: Site, share: Share, rng: torch.Generator) -> Draw | None:
    """Draws so many images of a share, with replacement, as uint8 pixels and targets; None of an empty share.

    An epoch is one of the unlabelled images, to each batch of which labelled ones are drawn. Participants hold
    different numbers of them and may have labels of their own making, so rows and targets lie in tensors that are as
    long as the set: a captured step serves all.
    """
    if len(share) == 0:
        return None
    padded = torch.zeros(len(share.images), dtype=torch.int64, device=share.indices.device)
    padded[: len(share)] = share.indices
    rows, targets = site.worker.hold("labelled rows", padded), site.worker.hold("labelled targets", share.targets)
    count = site.worker.hold("labelled count", torch.tensor(float(len(share)), device=padded.device))

    def draw(number: int) -> tuple[Tensor, Tensor]:
        place = torch.rand(number, generator=rng, device=rows.device) * count
        chosen = rows[place.long()]
        return share.images.pixels[chosen], targets[chosen]

    return draw
