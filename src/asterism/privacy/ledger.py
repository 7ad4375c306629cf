"""The ledger: one line for everything that leaves a site, each line holding the hash of the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from asterism.files import Lines
from asterism.flow import Ask, Reply

FIRST = "0" * 64


class Ledger:
    """A gate that writes down each reply and lets it pass unchanged."""

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        self._lines, self._now = Lines(path), now
        last = self._lines.last()
        self._before = digest(last) if last is not None else FIRST

    def __call__(self, site: str, ask: Ask, reply: Reply) -> Reply:
        """Writes the line of one reply, before the reply goes anywhere."""
        tensors = [
            {"name": name, "shape": list(value.shape), "bytes": value.nbytes} for name, value in reply.tensors.items()
        ]
        line = self._lines.append({
            "at": self._now(), "site": site, "stage": ask.version.stage, "round": ask.version.round, "task": ask.task,
            "tensors": tensors, "bytes": sum(value.nbytes for value in reply.tensors.values()),
            "samples": reply.metrics.get("samples"), "before": self._before,
        })  # fmt: skip
        self._before = digest(line)
        return reply


def digest(line: str) -> str:
    """The hash by which the next line refers to this one."""
    return hashlib.sha256(line.encode()).hexdigest()


def broken_line(path: Path) -> int | None:
    """The number (from 1) of the first line whose hash does not fit the line before it; None for a whole chain."""
    before = FIRST
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            chained = json.loads(line)["before"] == before
        except (ValueError, KeyError, TypeError):
            chained = False
        if not chained:
            return number
        before = digest(line)
    return None
