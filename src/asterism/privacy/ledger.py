"""The ledger: one line for everything that leaves a site, each line holding the hash of the one before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asterism.files import Lines
from asterism.flow import Ask, Reply
from asterism.privacy.chain import FIRST, digest
from asterism.privacy.groups import WITHHELD, smallest_group


class Ledger:
    """A gate that writes down each reply and lets it pass unchanged."""

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        self._lines, self._now = Lines(path), now
        last = self._lines.last()
        self._before = digest(last.encode()) if last is not None else FIRST

    def __call__(self, site: str, ask: Ask, reply: Reply) -> Reply:
        """Writes the line of one reply, before the reply goes anywhere."""
        tensors = [
            {"name": name, "shape": list(value.shape), "bytes": value.nbytes} for name, value in reply.tensors.items()
        ]
        line = self._lines.append({
            "at": self._now(), "site": site, "stage": ask.version.stage, "round": ask.version.round, "task": ask.task,
            "tensors": tensors, "bytes": sum(value.nbytes for value in reply.tensors.values()),
            "samples": reply.metrics.get("samples"),
            "smallest_group": smallest_group(ask, reply),
            "withheld": int(reply.metrics.get(WITHHELD, 0)), "before": self._before,
        })  # fmt: skip
        self._before = digest(line.encode())
        return reply
