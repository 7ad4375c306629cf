"""From a line in the settings to images in memory: finds the source, tells its layout, reads it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from asterism.data.benchmarks import BENCHMARKS, data_root, missing, place
from asterism.data.decode import assemble, conform
from asterism.data.images import Dataset, ImageSet
from asterism.data.listing import Listing, Parts
from asterism.data.readers import (
    arrays,
    cars,
    cifar100,
    cub200,
    digits,
    folder,
    manifest,
    packed,
    parquet,
    tiny_imagenet,
)
from asterism.data.settings import Images
from asterism.errors import AsterismError
from asterism.seeds import generator

DIGITS = "digits"
CHUNK = 256  # images moved at a time when a test part is cut out


@dataclass(frozen=True)
class Layout:
    """How one kind of source is told and read, directly or in a folder ``inside`` as archives make it."""

    recognises: Callable[[Path], bool]
    read: Callable[[Path], Listing | Parts]
    inside: str = ""


# The first that recognises a path reads it; a folder per class recognises every folder and comes last.
LAYOUTS: tuple[Layout, ...] = (
    Layout(manifest.recognises, manifest.read),
    Layout(arrays.recognises, arrays.read),
    Layout(packed.recognises, packed.read),
    Layout(parquet.recognises, parquet.read, inside="data"),
    Layout(cifar100.recognises, cifar100.read, inside="cifar-100-python"),
    Layout(tiny_imagenet.recognises, tiny_imagenet.read, inside="tiny-imagenet-200"),
    Layout(cub200.recognises, cub200.read, inside="CUB_200_2011"),
    Layout(cars.recognises, cars.read, inside="stanford_cars"),
    Layout(folder.recognises, folder.read),
)


@dataclass(frozen=True)
class Loaded:
    """A data set, and the names of the images that ``skip_bad`` left out of it."""

    dataset: Dataset
    skipped: tuple[str, ...] = ()


def load(settings: Images, *, seed: int) -> Loaded:
    """The images of the settings in one shape; the test part is the source's own, or cut out by ``seed``."""
    found = contents(settings)
    if isinstance(found, Listing):
        parts = assemble(found, settings)
    else:
        test = None if found.test is None else conform(found.test, settings)
        parts = Parts(conform(found.train, settings), test, found.skipped)
    train, test = parts.train, parts.test
    if test is None:
        train, test = cut(train, settings.test_fraction, seed=seed)
    return Loaded(Dataset(Path(settings.images).stem, train, test), parts.skipped)


def contents(settings: Images) -> Listing | Parts:
    """What lies at the source, before any image is decoded."""
    if settings.images == DIGITS:
        return digits.read()
    path = locate(settings)
    for layout in LAYOUTS:
        for candidate in (path, path / layout.inside):
            if layout.recognises(candidate):
                return layout.read(candidate)
    raise AsterismError(
        "not a source of images",
        where=str(path),
        fix="name a benchmark, a folder, a .csv manifest or an .npz file",
    )


def locate(settings: Images) -> Path:
    """The file or folder that the settings mean."""
    benchmark = BENCHMARKS.get(settings.images)
    if benchmark:
        root = data_root(settings.root)
        here = place(benchmark, root)
        if here is None:
            raise missing(benchmark, root)
        return here
    path = Path(settings.images).expanduser()
    if not path.exists():
        near = difflib.get_close_matches(settings.images, [DIGITS, *BENCHMARKS], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "asterism data list names the benchmarks"
        raise AsterismError("no such benchmark, file or folder", where=settings.images, fix=fix)
    return path


def cut(images: ImageSet, fraction: float, *, seed: int) -> tuple[ImageSet, ImageSet]:
    """``images`` as a train and a test part, about ``fraction`` of every class in the test part.

    A class of two or more keeps an image in both parts, one of a single image only in the first; images
    without a label are never tested on. The pixels are moved within their own memory, so ``images`` must not
    be used afterwards.
    """
    chosen = torch.zeros(len(images), dtype=torch.bool)
    for number, name in enumerate(images.classes):
        members = (images.labels == number).nonzero().flatten()
        if len(members) > 1:
            tested = min(max(1, round(fraction * len(members))), len(members) - 1)
            order = torch.randperm(len(members), generator=generator(seed, "test part", name))
            chosen[members[order[:tested]]] = True
    test = images.take(chosen.nonzero().flatten())
    kept = (~chosen).nonzero().flatten()
    return _compact(images, kept), test


def _compact(images: ImageSet, kept: Tensor) -> ImageSet:
    """The images at the increasing indices ``kept``, moved to the front of the same memory."""
    for start in range(0, len(kept), CHUNK):
        rows = kept[start : start + CHUNK]
        images.pixels[start : start + len(rows)] = images.pixels[rows]
    places = kept.tolist()
    return ImageSet(
        images.pixels[: len(kept)],
        images.labels[kept],
        [images.ids[i] for i in places],
        images.classes,
        tuple(images.sites[i] for i in places) if images.sites else (),
    )
