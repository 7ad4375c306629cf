"""Augmentation of a whole batch by tensor functions: no loop over images, nothing copied back to the host.

Randomness: :func:`augment` makes exactly one draw, ``torch.rand(8, b)``, whatever the recipe, so that
switching one variation on or off leaves the others as they were. ``Draws`` names its rows in order; the
variations are applied in that order too.

Departure: torchvision applies its colour jitters in random order. Here the order is fixed, since the paper's
recipe has only one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from asterism.data.settings import Augment

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, the weights that Pillow uses for its mode L


class Draws(NamedTuple):
    """Numbers in [0, 1), one per image, from which every variation is made."""

    row: Tensor
    column: Tensor
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor


def plain(pixels: Tensor) -> Tensor:
    """Uint8 pixels as float32 in [0, 1], for evaluation."""
    return pixels.to(torch.float32).div_(255)


def augment(pixels: Tensor, recipe: Augment, rng: torch.Generator) -> Tensor:
    """A random variation of each image, float32 in [0, 1].

    Args:
        pixels: (b, c, h, w) uint8, with one or three channels.
        recipe: what to vary, and how far. Saturation, hue and grey do nothing to images of one channel.
        rng: a generator on the device of the batch.
    """
    drawn = Draws(*torch.rand(len(Draws._fields), len(pixels), generator=rng, device=pixels.device))
    if recipe.crop or recipe.flip:
        flipped = drawn.flip < 0.5 if recipe.flip else torch.zeros_like(drawn.flip, dtype=torch.bool)
        pixels = crop_and_flip(pixels, recipe.crop, drawn.row, drawn.column, flipped)
    images = plain(pixels)
    if recipe.brightness:
        images = (images * factor(drawn.brightness, recipe.brightness)).clamp_(0, 1)
    if recipe.contrast:
        mean = luma(images).mean(dim=(1, 2, 3), keepdim=True)
        images = blend(images, mean, factor(drawn.contrast, recipe.contrast))
    return recolour(images, recipe, drawn) if images.shape[1] == 3 else images


def two_views(pixels: Tensor, recipe: Augment, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two independent variations of each image; the first is what ``augment`` would return."""
    return augment(pixels, recipe, rng), augment(pixels, recipe, rng)


def quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Each square image turned counter-clockwise by its own number of quarter turns.

    Args:
        images: (b, c, s, s) of any type.
        turns: (b,) integers in 0..3.
    """
    side = images.shape[-1]
    if images.shape[-2] != side:
        raise ValueError(f"quarter turns need square images, got {tuple(images.shape[-2:])}")
    upright = torch.arange(side * side, device=images.device).view(side, side)
    sources = torch.stack([torch.rot90(upright, k).flatten() for k in range(4)])
    return pick(images, sources[turns]).view_as(images)


def crop_and_flip(pixels: Tensor, margin: int, row: Tensor, column: Tensor, flipped: Tensor) -> Tensor:
    """Each image cut out of its zero-padded self, then mirrored where ``flipped`` says so.

    Args:
        pixels: (b, c, h, w).
        margin: pixels of padding on each side.
        row: (b,) numbers in [0, 1) that choose the offset; ``column`` likewise.
        column: see ``row``.
        flipped: (b,) booleans.
    """
    height, width = pixels.shape[-2:]
    rows = offset(row, margin) + torch.arange(height, device=pixels.device)
    across = torch.arange(width, device=pixels.device)
    columns = offset(column, margin) + torch.where(flipped[:, None], across.flip(0), across)
    # One flat gather: measured 3 times faster than two gathers and 8 times faster than indexing with four
    # tensors.
    places = rows[:, :, None] * (width + 2 * margin) + columns[:, None, :]
    return pick(pad(pixels, [margin] * 4), places.flatten(1)).view_as(pixels)


def offset(uniform: Tensor, margin: int) -> Tensor:
    """(b, 1) integers, evenly over 0..2·margin."""
    return (uniform * (2 * margin + 1)).long()[:, None]


def pick(images: Tensor, places: Tensor) -> Tensor:
    """(b, c, k): for each image its values at the k flat ``places`` (b, k), the same in every channel."""
    channels = images.shape[1]
    return images.flatten(2).gather(2, places[:, None].expand(-1, channels, -1))


def recolour(images: Tensor, recipe: Augment, drawn: Draws) -> Tensor:
    """``images`` (b, 3, h, w) with their saturation and hue varied, and some of them grey."""
    if recipe.saturation:
        images = blend(images, luma(images), factor(drawn.saturation, recipe.saturation))
    if recipe.hue:
        images = turn_hue(images, (2 * drawn.hue - 1) * recipe.hue)
    if recipe.grey:
        images = torch.where((drawn.grey < recipe.grey)[:, None, None, None], luma(images), images)
    return images


def factor(uniform: Tensor, strength: float) -> Tensor:
    """(b, 1, 1, 1) factors, evenly over [max(0, 1 − strength), 1 + strength]."""
    low = max(0.0, 1 - strength)
    return (low + (1 + strength - low) * uniform)[:, None, None, None]


def luma(images: Tensor) -> Tensor:
    """(b, 1, h, w): how bright each pixel looks."""
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, i : i + 1] * weight for i, weight in enumerate(LUMA))
    return red + green + blue


def blend(images: Tensor, towards: Tensor, keep: Tensor) -> Tensor:
    """``images`` on the line through ``towards``: there at 0, unchanged at 1, further away above 1."""
    return (keep * images + (1 - keep) * towards).clamp_(0, 1)


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """``images`` (b, 3, h, w) with their hue turned by ``turn`` (b,), in parts of the colour circle."""
    red, green, blue = images.unbind(1)
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)
    safe = torch.where(chroma > 0, chroma, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    # A channel falls from its peak to the floor over two sextants away from its own hue: red 5, green 3, blue
    # 1.
    phase = images.new_tensor([5.0, 3.0, 1.0])[:, None, None]
    k = (phase + sextant[:, None] + 6 * turn[:, None, None, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)
