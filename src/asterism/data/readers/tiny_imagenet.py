"""Tiny-ImageNet as published: ``train/<wnid>/images``, and the validation folder as the test part.

Its own test folder has no labels. Classes are in the order of their WordNet ids and carry the words of
``words.txt``; where two ids have the same words (crane the bird, crane the machine), the id is added to both.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from asterism.data.listing import Item, Listing
from asterism.data.readers.folder import files_below
from asterism.data.readers.tables import rows
from asterism.errors import AsterismError


def recognises(path: Path) -> bool:
    """Whether the training folder and the annotations of the validation folder are here."""
    return (path / "train").is_dir() and (path / "val" / "val_annotations.txt").is_file()


def read(root: Path) -> Listing:
    """500 training and 50 validation images per class, where the archive is complete."""
    ids = sorted(entry.name for entry in (root / "train").iterdir() if entry.is_dir())
    numbers = {id: i for i, id in enumerate(ids)}
    train = [
        Item(Path(path).name, path, numbers[id]) for id in ids for path in files_below(root / "train" / id / "images")
    ]
    annotations = root / "val" / "val_annotations.txt"
    test = []
    for number, (name, id, _) in enumerate(rows(annotations, 3, "\t"), start=1):
        if id not in numbers:
            raise AsterismError(f"class {id!r} has no training folder", where=f"{annotations} row {number}")
        test.append(Item(name, str(root / "val" / "images" / name), numbers[id], test=True))
    return Listing([*train, *test], len(train) + len(test), _names(root, ids))


def _names(root: Path, ids: list[str]) -> tuple[str, ...]:
    table = root / "words.txt"
    words = dict(rows(table, 2, "\t")) if table.is_file() else {}
    used = Counter(words.get(id, id) for id in ids)
    return tuple(words[id] if id in words and used[words[id]] == 1 else _with_id(words.get(id), id) for id in ids)


def _with_id(words: str | None, id: str) -> str:
    return f"{words} ({id})" if words else id
