"""Settings of the images: where they lie, their shape, how training varies them. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Section

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Augment(Section):
    """How training images are varied.

    The paper names no augmentation; the defaults are those of FCIL, whose code it builds on: a crop out of
    the zero-padded image, a mirror, and brightness. A jitter of strength s multiplies by a factor from [1 −
    s, 1 + s].
    """

    crop: Annotated[int, Field(ge=0)] = 4  # pixels of zero padding on each side before the random crop
    flip: bool = True
    brightness: Strength = 63 / 255
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # largest shift, as a part of the colour circle
    grey: Probability = 0.0


class Images(Section):
    """Where the images come from and which shape they take in memory."""

    images: Annotated[str, Field(min_length=1)] = "digits"  # a benchmark, a folder, a manifest, an .npz, parquet
    root: str = ""  # where fetched benchmarks lie; empty: $ASTERISM_DATA, else the cache folder of the user
    size: Annotated[int, Field(ge=8)] | None = None  # pixels per side; None: as stored, and all must agree
    colour: Literal["as-stored", "rgb", "grey"] = "as-stored"
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.25  # only where the source has no test part
    skip_bad: bool = False  # leave out, count and name images that cannot be read, instead of stopping
    augment: Augment = Augment()
