"""Prototypes that no gradient moves: they follow images by moving average, at a client and over the federation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.losses import unit
from asterism.site import Site

SUMS = "prototype_sums"


@dataclass(frozen=True)
class Moving:
    """A client's prototypes (c, d) while they move, and how many images have moved each."""

    prototypes: Tensor
    images: Tensor

    @classmethod
    def of(cls, site: Site, prototypes: Tensor) -> Moving:
        """Those that were sent, held by the worker."""
        held = site.worker.hold("moving prototypes", prototypes)
        return cls(held, site.worker.hold("moving images", held.new_zeros(len(held))))

    def follow(self, z: Tensor, labels: Tensor, moves: Tensor, places: Tensor, momentum: float) -> None:
        """The prototypes have followed the images of a batch."""
        prototypes, images = following(self.prototypes, z, labels, moves, places, momentum)
        self.prototypes.copy_(prototypes)
        self.images.add_(images)

    def sums(self) -> dict[str, Tensor]:
        """Prototypes times their images, so that the server's mean counts every image once."""
        return {SUMS: self.images[:, None] * self.prototypes}


def following(
    prototypes: Tensor, z: Tensor, labels: Tensor, moves: Tensor, places: Tensor, momentum: float
) -> tuple[Tensor, Tensor]:
    """Prototypes (c, d) of length 1 after they followed a batch by moving average, and how many images moved each.

    One image comes after the other. What the one adds after which k more of its label come has been weakened k times,
    so that a batch is a product of matrices; the prototype gets its length 1 back at the end.

    Args:
        prototypes: (c, d).
        z: (n, d).
        labels: (n,) in 0..c − 1.
        moves: (n,) of bool, which images move their prototype.
        places: (n,) different numbers, in which order.
        momentum: what is left of a prototype after an image.
    """
    later = (labels[:, None] == labels) & (places > places[:, None]) & moves
    weights = (1 - momentum) * momentum ** later.sum(dim=1)
    hot = (labels == torch.arange(len(prototypes), device=z.device)[:, None]).to(z) * moves
    images = hot.sum(dim=1)
    after = unit(momentum ** images[:, None] * prototypes + (hot * weights) @ z)
    return torch.where(images[:, None] > 0, after, prototypes), images


def turned_to(sums: Tensor, before: Tensor) -> Tensor:
    """Sums (c, d) at length 1; where there is nothing in them, what there was ``before``."""
    return torch.where((sums != 0).any(dim=1, keepdim=True), unit(sums), before)
