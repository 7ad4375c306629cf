"""Image tables of the Hugging Face Hub: ``train-*.parquet`` and ``test-*.parquet`` (extra ``hf``).

A struct column with ``bytes`` and ``path`` holds the encoded image, an integer column ``fine_label`` or
``label`` its class. Names come from ``classes.json`` beside the files, else from the metadata that the Hub
writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.data.images import UNLABELLED
from asterism.data.listing import Item, Listing
from asterism.errors import AsterismError

LABELS = ("fine_label", "label")
ROWS = 128  # held in memory at a time, whatever the size of a row group
BUFFER = 1 << 20


@dataclass(frozen=True)
class Rows:
    """The rows of several files in order, read anew on every walk."""

    train: Sequence[Path]
    test: Sequence[Path]
    image: str
    label: str
    classes: int

    def __iter__(self) -> Iterator[Item]:
        for path in self.train:
            yield from self._file(path, test=False)
        for path in self.test:
            yield from self._file(path, test=True)

    def _file(self, path: Path, *, test: bool) -> Iterator[Item]:
        for number, (image, label) in enumerate(_cells(path, [self.image, self.label]), start=1):
            place = f"{path} row {number}"
            kept = UNLABELLED if label is None else label
            if not UNLABELLED <= kept < self.classes:
                raise AsterismError(f"label {label}, for {self.classes} classes", where=place)
            stored = image or {"path": None, "bytes": None}
            id = stored["path"] or f"{path.name}#{number}"
            yield Item(id, stored["bytes"] or b"", kept, test=test, place=place)


def recognises(path: Path) -> bool:
    """Whether parquet files lie directly here."""
    return path.is_dir() and any(path.glob("*.parquet"))


def read(root: Path) -> Listing:
    """The rows of all files; without a ``train-…`` among them, all are training images."""
    train, test = _files(root, "train"), _files(root, "test") or _files(root, "validation")
    if not train:
        train, test = sorted(root.glob("*.parquet")), []
    with _open(train[0]) as first:
        image, label = _columns(first.schema_arrow, train[0])
        classes = _classes(root, first.schema_arrow, label)
    count = 0
    for path in (*train, *test):
        with _open(path) as file:
            count += file.metadata.num_rows
    return Listing(Rows(train, test, image, label, len(classes)), count, classes)


def _files(root: Path, part: str) -> list[Path]:
    return sorted({*root.glob(f"{part}-*.parquet"), *root.glob(f"{part}.parquet")})


def _open(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AsterismError(
            "parquet files need the package pyarrow", where=str(path), fix="pip install asterism[hf]"
        ) from None
    try:
        # Measured on one row group of 245 MB: pre-buffering, the default, holds all of it; this way 14 MB are held.
        return pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise AsterismError(f"not a parquet file: {str(error).splitlines()[0]}", where=str(path)) from None


def _cells(path: Path, columns: list[str]) -> Iterator[tuple[Any, Any]]:
    """The two columns row by row, never more than ``ROWS`` in memory."""
    with _open(path) as file:
        batches = file.iter_batches(ROWS, columns=columns)
        while True:
            try:
                batch = next(batches, None)
            except OSError as error:  # what pyarrow raises for damage, and the system for a failing disk
                raise AsterismError(f"damaged parquet file: {str(error).splitlines()[0]}", where=str(path)) from None
            if batch is None:
                return
            first, second = (batch.column(name).to_pylist() for name in columns)
            yield from zip(first, second, strict=True)


def _columns(schema: Any, path: Path) -> tuple[str, str]:
    import pyarrow as pa

    images = [
        column.name
        for column in schema
        if pa.types.is_struct(column.type) and {"bytes", "path"} <= {part.name for part in column.type}
    ]
    labels = [name for name in LABELS if name in schema.names and pa.types.is_integer(schema.field(name).type)]
    if not images or not labels:
        raise AsterismError(
            f"no column of images and labels among {', '.join(schema.names)}",
            where=str(path),
            fix="needed are a struct column with bytes and path, and an integer column fine_label or label",
        )
    return images[0], labels[0]


def _classes(root: Path, schema: Any, label: str) -> tuple[str, ...]:
    beside = root / "classes.json"
    try:
        if beside.is_file():
            return tuple(str(name) for name in json.loads(beside.read_text(encoding="utf-8")))
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return tuple(features["info"]["features"][label]["names"])
    except (ValueError, KeyError, TypeError):
        raise AsterismError(
            "the names of the classes are not known",
            where=str(beside),
            fix="write them there as a list, in the order of the labels",
        ) from None
