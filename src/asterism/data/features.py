"""Feature files: one row per image or prototype, from ``.npy``, ``.npz``, ``.csv`` or ``.parquet``.

``.npz`` holds an array ``features`` and, if anybody's, names ``participants``; where the rows are prototypes, it may
hold the ``sizes`` of their clusters. A CSV file has a header. In CSV and
Parquet every column but that of the participants is a feature; Parquet may hold the features as one column of lists.
"""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asterism.errors import AsterismError

Rows = NDArray[np.floating]

LARGEST = 1e150  # squares of larger numbers are no numbers
CHUNK = 1 << 12  # rows looked at together
KINDS = "store them as .npy, .npz, .csv or .parquet"


@dataclass(frozen=True)
class Features:
    """Feature rows (n, d), all finite; whose each row is, and how many images are behind it, where the file says so."""

    rows: Rows
    participants: tuple[str, ...] | None = None
    sizes: NDArray[np.int64] | None = None


def read(path: Path, participants: str | None = None) -> Features:
    """The features of a file; ``participants`` names the column, or the array, that says whose each row is."""
    if not path.is_file():
        raise AsterismError("no such file of features", where=str(path))
    kind = path.suffix.lower()
    if kind not in READERS:
        raise AsterismError(f"no kind of feature file: {kind or 'no ending'}", where=str(path), fix=KINDS)
    found = READERS[kind](path, participants)
    # A CSV file's first row is its header, as a spreadsheet counts.
    rows = checked(found.rows, str(path), first=2 if kind == ".csv" else 1)
    if found.participants is not None and len(found.participants) != len(rows):
        raise AsterismError(f"{len(rows)} rows, {len(found.participants)} participants", where=str(path))
    return Features(rows, found.participants, found.sizes)


def checked(rows: NDArray[Any], place: str = "", *, first: int = 1) -> Rows:
    """The rows as floating-point numbers, if they are a table of finite numbers with at least one row and column.

    ``first`` is the number that an error gives the first row.
    """
    if rows.dtype.kind not in "fiub":
        raise AsterismError(f"features are {rows.dtype}, not numbers", where=place)
    if rows.ndim != 2:
        raise AsterismError(f"features have the shape {rows.shape}", where=place, fix="give one row per image")
    if not rows.size:
        raise AsterismError(f"no features: {rows.shape[0]} rows, {rows.shape[1]} columns", where=place)
    kept = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    most = min(LARGEST, float(np.finfo(kept.dtype).max))
    for start in range(0, len(kept), CHUNK):
        sound = np.abs(kept[start : start + CHUNK]) <= most
        if not sound.all():
            row, column = np.argwhere(~sound)[0]
            raise AsterismError(
                f"a feature is {kept[start + row, column]}: no distance can be taken",
                where=f"{place} row {start + row + first}".strip(),
                fix="leave the row out, or mend what made it",
            )
    return kept


def _npy(path: Path, participants: str | None) -> Features:
    if participants is not None:
        raise AsterismError(
            "an .npy file has no column of participants",
            where=str(path),
            fix="store features and participants together, as .npz, .csv or .parquet",
        )
    rows = _loaded(path)
    if not isinstance(rows, np.ndarray):
        raise AsterismError("not a single array", where=str(path), fix="name the file .npz")
    return Features(rows)


def _npz(path: Path, participants: str | None) -> Features:
    arrays = _loaded(path)
    if not isinstance(arrays, Mapping):
        raise AsterismError("a single array", where=str(path), fix="name the file .npy")
    for key in ("features", *([participants] if participants else [])):
        if key not in arrays:
            raise AsterismError(f"no array {key!r}", where=str(path), fix=f"there are {', '.join(arrays) or 'none'}")
    names = arrays.get(participants or "participants")
    sizes = arrays.get("sizes")
    if sizes is not None and (sizes.dtype.kind not in "iu" or sizes.ndim != 1):
        raise AsterismError(f"sizes are {sizes.dtype} of shape {sizes.shape}", where=str(path), fix="one integer a row")
    return Features(
        arrays["features"],
        None if names is None else _names(names.ravel().tolist(), str(path), 1),
        None if sizes is None else sizes.astype(np.int64),
    )


def _loaded(path: Path) -> Any:
    try:
        with path.open("rb") as stored:  # np.load would leave a damaged file open
            file = np.load(stored, allow_pickle=False)
            return {key: file[key] for key in file.files} if isinstance(file, np.lib.npyio.NpzFile) else file
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise AsterismError(f"not an array file: {error}", where=str(path)) from None


def _csv(path: Path, participants: str | None) -> Features:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, strict=True)
            header = [name.strip() for name in next(table, [])]
            position = _position(header, participants, path)
            rows, names = [], []
            for number, cells in enumerate((cells for cells in table if cells), start=2):
                if len(cells) != len(header):
                    raise AsterismError(f"{len(cells)} cells, {len(header)} columns", where=f"{path} row {number}")
                names += [cells.pop(position)] if position is not None else []
                rows.append(_numbers(cells, header, position, f"{path} row {number}"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise AsterismError(f"not a CSV file: {error}", where=str(path), fix="save it as UTF-8 CSV") from None
    columns = len(header) - (position is not None)
    return Features(
        np.array(rows).reshape(len(rows), columns), None if position is None else _names(names, str(path), 2)
    )


def _numbers(cells: Sequence[str], header: Sequence[str], position: int | None, place: str) -> NDArray[np.float64]:
    try:
        return np.array(cells, np.float64)
    except ValueError:
        names = [name for i, name in enumerate(header) if i != position]
        name, cell = next((name, cell) for name, cell in zip(names, cells, strict=True) if not _is_number(cell))
        raise _not_numeric(name, repr(cell), place) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _not_numeric(column: str, kind: str, place: str) -> AsterismError:
    return AsterismError(
        f"column {column!r} is not numeric: {kind}",
        where=place,
        fix="leave it out, or name it with --participants if it says whose a row is",
    )


def _position(header: Sequence[str], participants: str | None, path: Path) -> int | None:
    if participants is None:
        return None
    if participants not in header:
        raise AsterismError(
            f"no column {participants!r}", where=str(path), fix=f"the columns are {', '.join(header[:20]) or 'none'}"
        )
    return header.index(participants)


def _parquet(path: Path, participants: str | None) -> Features:
    table = _table(path)
    position = _position(table.column_names, participants, path)
    columns = [name for i, name in enumerate(table.column_names) if i != position]
    lists = [name for name in columns if hasattr(table.schema.field(name).type, "value_type")]
    if lists and len(columns) > 1:
        other = next(name for name in columns if name != lists[0])
        raise _not_numeric(other, f"beside the lists of {lists[0]!r}", str(path))
    for name in columns:
        if table.column(name).null_count:
            row = table.column(name).is_null().to_pylist().index(True) + 1
            raise AsterismError(f"column {name!r} has an empty cell", where=f"{path} row {row}")
    rows = _listed(table.column(lists[0]), path) if lists else _columns(table, columns, path)
    if participants is None:
        return Features(rows)
    return Features(rows, _names(table.column(participants).to_pylist(), str(path), 1))


def _table(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AsterismError(
            "parquet files need the package pyarrow", where=str(path), fix="pip install asterism[hf]"
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (pa.ArrowException, OSError) as error:
        raise AsterismError(f"not a parquet file: {str(error).splitlines()[0]}", where=str(path)) from None


def _columns(table: Any, columns: Sequence[str], path: Path) -> NDArray[Any]:
    arrays = [table.column(name).to_numpy() for name in columns]
    for name, array in zip(columns, arrays, strict=True):
        if array.dtype.kind not in "fiub":
            raise _not_numeric(name, str(table.schema.field(name).type), str(path))
    return np.stack(arrays, axis=1) if arrays else np.empty((table.num_rows, 0))


def _listed(column: Any, path: Path) -> NDArray[Any]:
    rows = column.to_numpy()
    lengths = np.array([len(row) for row in rows])
    if len(rows) and (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        raise AsterismError(f"{lengths[row]} features, the first row has {lengths[0]}", where=f"{path} row {row + 1}")
    stacked: NDArray[Any] = np.stack(rows) if len(rows) else np.empty((0, 0))
    return stacked


def _names(cells: Sequence[Any], place: str, first: int) -> tuple[str, ...]:
    names = tuple("" if cell is None else str(cell).strip() for cell in cells)
    if "" in names:
        raise AsterismError("a row that is nobody's", where=f"{place} row {names.index('') + first}")
    return names


READERS: Mapping[str, Callable[[Path, str | None], Features]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
