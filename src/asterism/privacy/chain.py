"""The chain of hashes that shows whether a line of a ledger was changed or taken out. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

FIRST = "0" * 64  # what the first line names as the hash before it


def digest(line: bytes) -> str:
    """The hash by which the next line refers to this one."""
    return hashlib.sha256(line).hexdigest()


def broken_line(lines: Iterable[bytes]) -> int | None:
    """The number (from 1) of the first line that does not follow from the line before it; None for a whole chain."""
    before = FIRST
    for number, line in enumerate(lines, start=1):
        try:
            chained = json.loads(line)["before"] == before
        except (ValueError, KeyError, TypeError):
            chained = False
        if not chained:
            return number
        before = digest(line)
    return None
