"""The site × class picture of a split for a terminal: who holds how much of what, at one glance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from asterism.data.partition import Ints
from asterism.data.split import FederationSplit, StageSplit, table

SHADES = " ░▒▓█"
COLOURS = ("", "blue", "cyan", "yellow", "bright_red")
LONGEST_NAME = 20


@dataclass(frozen=True, eq=False)
class Picture:
    """A stage drawn as wide as the terminal allows.

    ``counts``: labelled images, (participants, classes). ``images``: each participant's, labelled or not.
    """

    title: str
    participants: tuple[str, ...]
    counts: Ints
    images: Ints

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Coloured lines that fit the console."""
        for line in self.lines(options.max_width):
            text = Text(line, no_wrap=True)
            for shade, colour in zip(SHADES[1:], COLOURS[1:], strict=True):
                text.highlight_regex(f"{shade}+", colour)
            yield text

    def lines(self, width: int) -> Iterator[str]:
        """Plain lines of at most ``width`` characters: a title, one row per participant, and the scale."""
        names = [_shortened(name) for name in self.participants]
        margin = max(len(name) for name in names)
        totals = [f"{n:>7,} {c:>4}" for n, c in zip(self.images, (self.counts > 0).sum(axis=1), strict=True)]
        longest = max(len(total) for total in totals)
        cells, merged = _merged(self.counts, max(1, width - margin - longest - 4))
        most = int(cells.max(initial=0))
        yield self.title
        yield f"{'':{margin}}  {'':{cells.shape[1]}}  {'images classes':>{longest}}"
        for name, row, total in zip(names, _shaded(cells, most), totals, strict=True):
            yield f"{name:{margin}} │{row}│ {total}"
        yield f"one column = {merged} class{'es' if merged > 1 else ''}, {SHADES[-1]} = up to {most:,} images"


def site_class_picture(split: FederationSplit, stage: StageSplit, labels: Tensor) -> Picture:
    """A rich renderable of one stage: participants as rows, its classes as columns, shaded by count."""
    rows = [split.data.classes.index(name) for name in stage.classes]
    counts = table(split, labels, len(split.data.classes))[split.stages.index(stage)][:, rows]
    images = np.array([len(stage.shares[name]) for name in split.participants], dtype=np.int64)
    title = f"{stage.name}: {len(rows):,} classes, {images.sum():,} images, {len(images):,} participants"
    if unlabelled := int(images.sum() - counts.sum()):
        title += f" ({unlabelled:,} without a label)"
    return Picture(title, split.participants, counts, images)


def plain_picture(split: FederationSplit, stage: StageSplit, labels: Tensor, *, width: int = 80) -> str:
    """The same picture as plain text, for pipes and files."""
    return "\n".join(site_class_picture(split, stage, labels).lines(width))


def _merged(counts: Ints, columns: int) -> tuple[Ints, int]:
    """Counts with neighbouring classes added up until at most ``columns`` remain, and how many make one."""
    each = max(1, -(-counts.shape[1] // columns))
    starts = np.arange(0, counts.shape[1], each)
    return np.add.reduceat(counts, starts, axis=1) if len(starts) else counts, each


def _shaded(cells: Ints, most: int) -> list[str]:
    """One string per row; anything above zero is visible, however little."""
    levels = -(-cells * (len(SHADES) - 1) // max(1, most))
    return ["".join(SHADES[level] for level in row) for row in levels]


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
