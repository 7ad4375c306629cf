"""Rows of the plain text tables that official archives bring along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from asterism.errors import AsterismError


def rows(path: Path, columns: int, separator: str | None = None) -> Iterator[list[str]]:
    """Each row as ``columns`` cells, the last taking the rest; white space separates by default."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise AsterismError("a file of the benchmark is missing", where=str(path), fix="unpack it again") from None
    for number, line in enumerate(lines, start=1):
        cells = line.split(separator, columns - 1)
        if len(cells) < columns:
            raise AsterismError(f"expected {columns} columns, got {line!r}", where=f"{path} row {number}")
        yield cells
