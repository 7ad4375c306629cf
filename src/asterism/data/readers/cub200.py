"""CUB-200-2011 as published: the folder ``images`` beside tables of files, classes and parts.

Wah et al., The Caltech-UCSD Birds-200-2011 dataset, 2011. The images differ in size, so ``data.size`` must be
set.
"""

from __future__ import annotations

from pathlib import Path

from asterism.data.listing import Item, Listing
from asterism.data.readers.tables import rows
from asterism.errors import AsterismError

TABLES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def recognises(path: Path) -> bool:
    """Whether the tables of the official archive are here."""
    return all((path / name).is_file() for name in TABLES[:3])


def read(root: Path) -> Listing:
    """The images in the order of their official numbers, training part first."""
    files, labels, in_train, names = (_column(root / name) for name in TABLES)
    numbers = {key: i for i, key in enumerate(sorted(names, key=int))}
    items = []
    for key, file in files.items():
        if labels.get(key) not in numbers or in_train.get(key) not in ("0", "1"):
            raise AsterismError(
                f"image {key} has no class or no part",
                where=str(root / "images.txt"),
                fix="unpack the archive again",
            )
        items.append(Item(file, str(root / "images" / file), numbers[labels[key]], test=in_train[key] == "0"))
    items.sort(key=lambda item: item.test)
    return Listing(items, len(items), tuple(names[key] for key in numbers))


def _column(path: Path) -> dict[str, str]:
    return {key: value.strip() for key, value in rows(path, 2)}
