"""A folder per class: ``root/<class>/…``, or ``root/train/<class>/…`` beside ``root/test`` or ``root/val``.

Images in a folder ``_unlabelled`` have no class. Hidden files are passed over; everything else must be an
image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from asterism.data.images import UNLABELLED
from asterism.data.listing import Item, Listing
from asterism.errors import AsterismError

TRAIN = ("train", "small-train")  # small-…: the official names of Herbarium 19's reduced images
TEST = ("test", "val", "validation", "small-validation")
NO_CLASS = "_unlabelled"
LEFT_BY_SYSTEMS = {"thumbs.db", "desktop.ini"}


def recognises(path: Path) -> bool:
    """Whether ``path`` is a folder: this layout is the one to try last."""
    return path.is_dir()


def read(root: Path) -> Listing:
    """Every image below the class folders, in the order of their paths."""
    train = _part(root, TRAIN)
    test = _part(root, TEST) if train else None
    parts = [part for part in (train or root, test) if part]
    names = sorted({name for part in parts for name in _class_folders(part)} - {NO_CLASS})
    if not names and not any((part / NO_CLASS).is_dir() for part in parts):
        raise AsterismError(
            "no class folders here",
            where=str(parts[0]),
            fix=f"put each image into a folder named after its class, or into {NO_CLASS}",
        )
    numbers = {name: i for i, name in enumerate(names)} | {NO_CLASS: UNLABELLED}
    items = [
        Item(path[len(str(root)) + 1 :].replace(os.sep, "/"), path, numbers[name], test=part == test)
        for part in parts
        for name in _class_folders(part)
        for path in files_below(part / name)
    ]
    if not items:
        raise AsterismError("the class folders are empty", where=str(parts[0]))
    return Listing(items, len(items), tuple(names))


def files_below(folder: Path) -> Iterator[str]:
    """Every file below a folder, sorted, without hidden ones and those that systems leave behind."""
    for here, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.lower() not in LEFT_BY_SYSTEMS:
                yield os.path.join(here, name)


def _part(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these folders that holds folders; one that holds images is a class (of trains, say)."""
    return next((root / name for name in names if (root / name).is_dir() and _class_folders(root / name)), None)


def _class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
