"""A data reconstruction attack on prototypes: what images could be read out of what a site sends?

As in the paper's last appendix: dummy images are optimised by Adam until their representations match a given one, by
the mean squared error, until it falls no further. How near the result comes to a real image is told beside how near
the mean image comes, which needs no attack. Departures: dummy images are kept within the range of real ones, and a
prior of smoothness (``smoothness``) may make the attack stronger than the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

Represent = Callable[[Tensor], Tensor]  # images (n, c, h, w) in [0, 1] to representations (n, d)
CHUNK = 256  # real images compared at a time
FALL = 1e-3  # part of the error by which it must fall to count as falling


@dataclass(frozen=True)
class Recovered:
    """What an attack came to, image by image."""

    images: Tensor  # (n, c, h, w) in [0, 1]
    errors: Tensor  # (n,) mean squared errors of their representations
    steps: int


@dataclass(frozen=True)
class Similarity:
    """How near images come to the nearest of some real ones, image by image."""

    nearest: Tensor  # (n,) its number among the real ones
    error: Tensor  # (n,) mean squared error of pixels
    cosine: Tensor  # (n,) of pixels about their own mean, which an even grey does not raise

    @property
    def psnr(self) -> Tensor:
        """Peak signal-to-noise ratio in decibel."""
        return -10 * self.error.clamp_min(1e-12).log10()


def reconstruct(
    represent: Represent,
    targets: Tensor,
    shape: tuple[int, int, int],
    *,
    rng: torch.Generator,
    steps: int = 2000,
    lr: float = 0.05,
    patience: int = 100,
    smoothness: float = 0.0,
) -> Recovered:
    """Images whose representations match the targets (n, d); each is attacked for itself.

    Args:
        represent: the model that the targets came from, not changed by this.
        targets: prototypes.
        shape: of one image.
        rng: draws the first dummy images, on the CPU.
        steps: most of Adam.
        lr: of Adam.
        patience: steps without a fall of the error after which it has converged.
        smoothness: weight of the total variation.
    """
    dummy = torch.rand(len(targets), *shape, generator=rng).to(targets.device).requires_grad_()
    optimiser = torch.optim.Adam([dummy], lr=lr)
    lowest = torch.full((len(targets),), torch.inf, device=targets.device)
    images, matched = dummy.detach().clone(), lowest.clone()
    before, since, step = float("inf"), 0, 0
    while step < steps and since < patience:
        errors = (represent(dummy) - targets).square().mean(dim=1)
        losses = errors + smoothness * total_variation(dummy)
        better = losses.detach() < lowest
        lowest[better], matched[better] = losses.detach()[better], errors.detach()[better]
        images[better] = dummy.detach()[better]
        total = float(lowest.sum())
        since, before = (0, total) if total < (1 - FALL) * before else (since + 1, before)
        dummy.grad = torch.autograd.grad(losses.sum(), dummy)[0]
        optimiser.step()
        with torch.no_grad():
            dummy.clamp_(0, 1)
        step += 1
    return Recovered(images, matched, step)


def total_variation(images: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels, (n,)."""
    across, down = images.diff(dim=3).square(), images.diff(dim=2).square()
    return across.mean(dim=(1, 2, 3)) + down.mean(dim=(1, 2, 3))


def similarity(images: Tensor, real: Tensor) -> Similarity:
    """How near each image comes to the nearest real one, both (·, c, h, w) in [0, 1]."""
    flat = images.flatten(1)
    distances = torch.cat([torch.cdist(flat, part.flatten(1)) for part in torch.split(real, CHUNK)], dim=1)
    smallest, nearest = distances.min(dim=1)
    matched = real[nearest].flatten(1)
    return Similarity(nearest, smallest.square() / flat.shape[1], cosine_similarity(_centred(flat), _centred(matched)))


def _centred(flat: Tensor) -> Tensor:
    return flat - flat.mean(dim=1, keepdim=True)


def behind(represented: Tensor, first: int, count: int) -> Tensor:
    """Rows of ``count`` images that a local cluster around one of them would hold: it and its nearest neighbours."""
    distances = torch.cdist(represented[first : first + 1], represented).squeeze(0)
    distances[first] = -1.0
    return distances.argsort(stable=True)[:count]
