"""Gates of a site's owner: tasks that are never answered, and rows that too few images stand behind.

A reply is read row by row where it says how many images are behind each row: in ``sizes``, of rows that are looked
at singly, or in ``counts``, of rows that are added up over sites. The floor is a site's own; it holds whatever the
server asks. Tensors without such numbers (a model, a histogram) speak of all images of a site at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from asterism.errors import AsterismError
from asterism.flow import Ask, Options, Reply, Tensors

SIZES, COUNTS = "sizes", "counts"
TABLES = ("evaluate",)  # tasks whose rows are counts of images, not means of them
WITHHELD = "withheld"  # rows that a reply leaves out


def smallest_group(ask: Ask, reply: Reply) -> int | None:
    """Images behind the row that has the fewest; all of the site's where a reply has no rows; None if unknown."""
    behind = [value[value > 0] for name, value in reply.tensors.items() if name in (SIZES, COUNTS) and value.ndim == 1]
    least = [int(value.min()) for value in behind if len(value)]
    if least:
        return min(least)
    samples = None if unsized(ask, reply) else reply.metrics.get("samples")
    return None if samples is None else int(samples)


def unsized(ask: Ask, reply: Reply) -> list[str]:
    """Names of tensors with rows of which nobody says how many images are behind each."""
    if ask.task in TABLES or {SIZES, COUNTS} & reply.tensors.keys():
        return []
    return [n for n, v in reply.tensors.items() if v.ndim > 1 and v.is_floating_point() and n not in ask.tensors]


def raised(options: Options, floor: int) -> Options:
    """Options that ask for at least the site's own floor, where a task knows one."""
    return {**options, "floor": max(int(options["floor"]), floor)} if "floor" in options else options


class Floor:
    """A gate that holds back every row behind which fewer than ``floor`` images stand."""

    def __init__(self, floor: int) -> None:
        self._floor = floor

    def __call__(self, site: str, ask: Ask, reply: Reply) -> Reply:
        """The reply without those rows: single rows are left out, rows of sums are zeros.

        Rows that do not tell their numbers are not let out at all.
        """
        if self._floor and (rows := unsized(ask, reply)):
            raise AsterismError(
                f"task {ask.task!r} would send {', '.join(rows)} without the number of images behind each row",
                where="floor",
                fix="choose another method, or allow it with floor = 0 in site.toml",
            )
        for name, hold in ((SIZES, _left_out), (COUNTS, _zeroed)):
            behind = reply.tensors.get(name)
            if behind is None or behind.ndim != 1:
                continue
            small = (behind > 0) & (behind < self._floor)
            if bool(small.any()):
                metrics = {**reply.metrics, WITHHELD: reply.metrics.get(WITHHELD, 0.0) + float(small.sum())}
                reply = replace(reply, tensors=hold(reply.tensors, small), metrics=metrics)
        return reply


class Withhold:
    """A gate that lets no answer to certain tasks out."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks = frozenset(tasks)

    def refuse(self, task: str) -> None:
        """An error where the site's owner forbids the task; asked before any work is done, too."""
        if task in self._tasks:
            raise AsterismError(f"this site withholds {task!r}", where="withhold", fix="ask the site's owner")

    def __call__(self, site: str, ask: Ask, reply: Reply) -> Reply:
        """The reply as it is, or an error."""
        self.refuse(ask.task)
        return reply


def _left_out(tensors: Tensors, small: Tensor) -> dict[str, Tensor]:
    rows = len(small)
    return {n: v[~small] if v.ndim and len(v) == rows else v for n, v in tensors.items()}


def _zeroed(tensors: Tensors, small: Tensor) -> dict[str, Tensor]:
    """Rows of sums and counts as if no image were behind them; what is not by row cannot be told apart and goes."""
    rows = len(small)
    return {
        name: torch.where(small.view(-1, *[1] * (value.ndim - 1)), torch.zeros_like(value), value)
        for name, value in tensors.items()
        if value.ndim and len(value) == rows
    }
