"""What a reader finds: encoded images still to be decoded (``Listing``), or images in memory (``Parts``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asterism.data.images import ImageSet

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Item:
    """One image: the path or the bytes of an image file, or pixels (h, w) or (h, w, 3)."""

    id: str
    content: str | bytes | Pixels
    label: int
    test: bool = False
    site: str = ""
    place: str = ""  # what an error should name; empty: the path, or else the id

    @property
    def where(self) -> str:
        """The file, or the file and row, that a person would look for."""
        return self.place or (self.content if isinstance(self.content, str) else self.id)


@dataclass(frozen=True)
class Listing:
    """Encoded images in a fixed order, the test part last; ``items`` can be walked more than once."""

    items: Iterable[Item]
    count: int
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """Images in memory; ``test`` is None where the source has no test part, ``skipped`` names bad images."""

    train: ImageSet
    test: ImageSet | None
    skipped: tuple[str, ...] = ()
