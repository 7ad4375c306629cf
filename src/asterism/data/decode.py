"""Image files become one uint8 tensor (n, c, h, w), allocated once and filled in order.

Shape: with ``size`` set, the largest centred square is resampled to ``size`` × ``size`` by Pillow's
antialiased bilinear filter, which is a resize of the shorter side and a centre crop in one step. Without it,
images stay as they are and must agree. Colour: ``as-stored`` gives three channels as soon as one image has
colour, and one otherwise. Modes: transparency is laid over white, palettes and CMYK become RGB, 16-bit grey
keeps its upper 8 bits, the orientation that a camera noted is applied, and of an animation the first frame
counts.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from asterism.data.images import ImageSet
from asterism.data.listing import Item, Listing, Parts, Pixels
from asterism.data.settings import Images
from asterism.errors import AsterismError

BATCH = 128  # images decoded at a time, held beside the tensor
# Measured on 2 cores: two threads halve the time for 500 × 375 JPEGs, but make 32 × 32 and 64 × 64 images up
# to 1.8 times slower, since those spend their time under the interpreter's lock.
WORTH_A_THREAD = 128 * 128
DEEP_GREY = {"I", "I;16", "I;16L", "I;16B", "I;16N"}
GREY = {"1", "L", "LA", "La", "F"} | DEEP_GREY


class Unreadable(Exception):
    """Says why one image cannot be read."""


@dataclass(frozen=True)
class Header:
    """What an image says of itself before its pixels are read."""

    mode: str
    width: int
    height: int


@dataclass
class Kept:
    """What is remembered of the images read so far: not their bytes, which would double the memory."""

    first: str = ""
    ids: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    train: int = 0
    test_seen: bool = False
    skipped: list[str] = field(default_factory=list)

    def add(self, item: Item) -> None:
        """Remembers an image whose pixels are in place."""
        self.first = self.first or item.where
        self.ids.append(item.id)
        self.labels.append(item.label)
        self.sites.append(item.site)
        self.train += not item.test


def assemble(listing: Listing, settings: Images) -> Parts:
    """The images of a listing, decoded in its order into one tensor that train and test part share."""
    channels, large = survey(listing.items, settings.colour)
    attempt = partial(_attempt, channels=channels, size=settings.size)
    kept, pixels = Kept(), np.empty((0, 0, 0, 0), np.uint8)
    for item, outcome in _in_order(listing.items, attempt, threads=(os.cpu_count() or 1) if large else 1):
        kept.test_seen |= item.test
        if isinstance(outcome, Unreadable):
            _skip(item, outcome, kept, settings)
            continue
        if not kept.ids:
            pixels = np.empty((listing.count, *outcome.shape), np.uint8)
        if outcome.shape != pixels.shape[1:]:
            raise _disagreement(kept.first, pixels.shape[1:], item.where, outcome.shape)
        pixels[len(kept.ids)] = outcome
        kept.add(item)
    if not kept.train:
        raise AsterismError("no readable training image", where=", ".join(kept.skipped[:3]))
    return _parts(pixels, kept, listing.classes)


def conform(images: ImageSet, settings: Images) -> ImageSet:
    """``images`` in the size and colour of the settings: the same object where nothing has to change."""
    channels, height, width = images.shape
    wanted = {"rgb": 3, "grey": 1, "as-stored": channels}[settings.colour]
    fits = settings.size is None or settings.size == height == width
    if not len(images) or (fits and channels == wanted):
        return images
    sites = images.sites or [""] * len(images)
    rows = zip(images.ids, images.pixels, images.labels.tolist(), sites, strict=True)
    items = [Item(id, array(pixels), label, site=site) for id, pixels, label, site in rows]
    return assemble(Listing(items, len(items), images.classes), settings).train


def array(pixels: torch.Tensor) -> Pixels:
    """One image (c, h, w) as Pillow wants it: (h, w) or (h, w, 3)."""
    result: Pixels = pixels.permute(1, 2, 0).numpy()
    return result[..., 0] if result.shape[-1] == 1 else result


def survey(items: Iterable[Item], colour: str) -> tuple[int, bool]:
    """How many channels the images need, and whether they are large enough to be worth threads."""
    large: bool | None = None
    for item in items:
        try:
            seen = header(item)
        except Unreadable:
            continue
        large = seen.width * seen.height >= WORTH_A_THREAD if large is None else large
        if colour == "rgb" or (colour == "as-stored" and seen.mode not in GREY):
            return 3, large
        if colour == "grey":
            break
    return (3 if colour == "rgb" else 1), bool(large)


def header(item: Item) -> Header:
    """Mode and size of an image as stored; ``Unreadable`` where it is no image."""
    try:
        with _opened(item.content) as image:
            return Header(image.mode, *image.size)
    except Exception as error:  # a decoder may raise anything on a broken file
        raise _reason(error) from error


def decode(item: Item, *, channels: int, size: int | None) -> Pixels:
    """Pixels (channels, h, w) of an image; ``Unreadable`` where it is broken or no image."""
    try:
        with _opened(item.content) as image:
            image.load()
            upright = ImageOps.exif_transpose(image) if "exif" in image.info else image
            pixels = np.asarray(_square(_plain_mode(upright, "RGB" if channels == 3 else "L"), size))
    except Exception as error:  # a decoder may raise anything on a broken file
        raise _reason(error) from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _opened(content: str | bytes | Pixels) -> Image.Image:
    if isinstance(content, np.ndarray):
        return Image.fromarray(content)
    return Image.open(content if isinstance(content, str) else io.BytesIO(content))


def _reason(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    if isinstance(error, UnidentifiedImageError):
        return Unreadable("not an image in a known format")
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unreadable((text or type(error).__name__).splitlines()[0].lower())


def _plain_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == "F":
        raise Unreadable("floating-point pixels have no fixed range; store them in 8 or 16 bits")
    if image.mode in DEEP_GREY:
        image = _upper_bits(image)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert(mode)


def _upper_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise Unreadable("32-bit pixels have no fixed range; store them in 8 or 16 bits")
    return Image.fromarray((values >> 8).astype(np.uint8))


def _square(image: Image.Image, size: int | None) -> Image.Image:
    if size is None:
        return image
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))


def _attempt(item: Item, *, channels: int, size: int | None) -> Pixels | Unreadable:
    try:
        return decode(item, channels=channels, size=size)
    except Unreadable as reason:
        return reason


def _in_order(
    items: Iterable[Item], attempt: Callable[[Item], Pixels | Unreadable], *, threads: int
) -> Iterator[tuple[Item, Pixels | Unreadable]]:
    stream = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        each = pool.map if threads > 1 else map
        while batch := list(islice(stream, BATCH)):
            yield from zip(batch, each(attempt, batch), strict=True)


def _skip(item: Item, reason: Unreadable, kept: Kept, settings: Images) -> None:
    if not settings.skip_bad:
        raise AsterismError(
            f"cannot read image: {reason}",
            where=item.where,
            fix="replace or remove the file, or set data.skip_bad = true",
        ) from reason
    kept.skipped.append(item.where)


def _disagreement(first: str, shape: tuple[int, ...], second: str, other: tuple[int, ...]) -> AsterismError:
    return AsterismError(
        f"images differ in size: {shape[2]} × {shape[1]} and {other[2]} × {other[1]} pixels",
        where=f"{first} and {second}",
        fix="set data.size to bring all images to one size",
    )


def _parts(pixels: Pixels, kept: Kept, classes: tuple[str, ...]) -> Parts:
    everything = torch.from_numpy(pixels)
    labels = torch.tensor(kept.labels, dtype=torch.int64)
    named = any(kept.sites)

    def part(start: int, stop: int) -> ImageSet:
        sites = tuple(kept.sites[start:stop]) if named else ()
        return ImageSet(everything[start:stop], labels[start:stop], kept.ids[start:stop], classes, sites)

    test = part(kept.train, len(kept.ids)) if kept.test_seen else None
    return Parts(part(0, kept.train), test, tuple(kept.skipped))
