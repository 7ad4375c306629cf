"""A CSV file that names images: ``path,label,participant,split,stage``; only ``path`` must be there.

Paths are relative to the manifest. Empty cells are allowed: no label (unlabelled), no participant, and no
split (``train``). ``stage`` may be there for other readers of the file and is not looked at: the split file
says which stage an image belongs to.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asterism.data.images import UNLABELLED
from asterism.data.listing import Item, Listing
from asterism.errors import AsterismError

COLUMNS = ("path", "label", "participant", "split", "stage")
Row = tuple[int, Mapping[str, str]]


def recognises(path: Path) -> bool:
    """Whether ``path`` is a CSV file."""
    return path.suffix.lower() == ".csv" and path.is_file()


def read(path: Path) -> Listing:
    """The images in the order of their rows, those of the test part last."""
    rows = list(_rows(path))
    if not rows:
        raise AsterismError("the manifest names no image", where=str(path))
    classes = tuple(sorted({row["label"] for _, row in rows} - {""}))
    numbers = {name: i for i, name in enumerate(classes)} | {"": UNLABELLED}
    items = [_item(path, number, row, numbers[row["label"]]) for number, row in rows]
    items.sort(key=lambda item: item.test)
    return Listing(items, len(items), classes)


def _rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, restkey="", restval="", strict=True)
            _check_columns(path, table.fieldnames or ())
            for row in table:
                if "" in row:
                    raise AsterismError("more cells than columns", where=f"{path} row {table.line_num}")
                yield table.line_num, {name: (row.get(name) or "").strip() for name in COLUMNS}
    except (UnicodeDecodeError, csv.Error) as error:
        raise AsterismError(f"not a CSV file: {error}", where=str(path), fix="save it as UTF-8 CSV") from None


def _check_columns(path: Path, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in COLUMNS]
    if "path" not in names or unknown:
        what = f"unknown column {unknown[0]!r}" if unknown else "the column 'path' is missing"
        raise AsterismError(what, where=f"{path} row 1", fix=f"the columns are {', '.join(COLUMNS)}")


def _item(manifest: Path, number: int, row: Mapping[str, str], label: int) -> Item:
    where = f"{manifest} row {number}"
    if not row["path"]:
        raise AsterismError("the path is empty", where=where)
    if row["split"] not in ("", "train", "test"):
        raise AsterismError(f"split is {row['split']!r}", where=where, fix="write train or test, or leave it empty")
    return Item(
        row["path"],
        str(manifest.parent / row["path"]),
        label,
        test=row["split"] == "test",
        site=row["participant"],
        place=f"{where}: {row['path']}",
    )
