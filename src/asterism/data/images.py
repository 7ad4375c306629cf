"""Image sets: one uint8 tensor in memory, shared by every participant; ids kept so that a report can name a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True)
class ImageSet:
    """Images of one size: ``pixels`` (n, channels, height, width) uint8, ``labels`` (n,) into ``classes``.

    A label of ``UNLABELLED`` means that nobody said what the image shows. ``sites`` names the participant each
    image belongs to where a manifest says so, and is empty otherwise.
    """

    pixels: Tensor
    labels: Tensor
    ids: Sequence[str]
    classes: tuple[str, ...]
    sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.pixels)
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 (n, c, h, w), got {self.pixels.dtype} {tuple(self.pixels.shape)}")
        if len(self.labels) != n or len(self.ids) != n or (self.sites and len(self.sites) != n):
            raise ValueError(f"{n} images, {len(self.labels)} labels, {len(self.ids)} ids, {len(self.sites)} sites")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def take(self, indices: Tensor) -> ImageSet:
        """A new set of the images at ``indices`` (a copy: for cutting a test part, never for a participant)."""
        chosen = indices.tolist()
        return replace(
            self,
            pixels=self.pixels[indices],
            labels=self.labels[indices],
            ids=[self.ids[i] for i in chosen],
            sites=tuple(self.sites[i] for i in chosen) if self.sites else (),
        )

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set with its pixels and labels on ``device``."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """What one federation learns from and is measured on; both parts share classes and image shape."""

    name: str
    train: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        if self.train.classes != self.test.classes:
            raise ValueError("train and test name different classes")
        if len(self.test) and self.train.shape != self.test.shape:
            raise ValueError(f"train images are {self.train.shape}, test images {self.test.shape}")
