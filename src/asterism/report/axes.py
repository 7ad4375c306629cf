"""What the pictures of a report share: axes of rounds, of percentages and of class names, lines, shades, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asterism.report.curves import Points, starts
from asterism.report.read import RunRecord
from asterism.report.style import INK, MUTED, RULE, SHADES, WIDTH, canvas, shown, thinned

LETTER = 0.08  # inches
MOST_NUMBERS = 20


def line(axes: Axes, points: Points, **look: object) -> None:
    """A curve with about a dozen markers, and nothing where there are no points."""
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, markevery=max(1, len(x) // 12), clip_on=False, **look)  # type: ignore[arg-type]


def percent_axis(axes: Axes) -> None:
    """Test accuracy upwards, from 0 to 100."""
    axes.set_ylim(0, 100)
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y")


def stage_axis(axes: Axes, record: RunRecord, since: int = 0) -> None:
    """Rounds along the bottom from ``since`` on, and where there are several stages their borders and names."""
    started, stages = starts(record), record.results.stages
    axes.set_xlim(since, sum(stage.rounds for stage in stages))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    for stage in stages if len(stages) > 1 else ():
        start = started[stage.name]
        if start < since:
            continue
        if start:
            axes.axvline(start, color=MUTED, linewidth=0.8, linestyle=":")
        top = axes.get_xaxis_transform()
        axes.text(start + stage.rounds / 2, 1.02, stage.name, transform=top, ha="center", color=MUTED)


def legend(figure: Figure, axes: Axes) -> None:
    """The names of what is drawn, above the picture, where there is more than one."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside upper right", ncols=4)


def shades(
    figure: Figure,
    axes: Axes,
    values: np.ndarray,
    label: str,
    *,
    most: float,
    aspect: Literal["auto", "equal"] = "auto",
) -> None:
    """Shaded cells; on a root scale, because a few images or mistakes must still be told from none."""
    norm = PowerNorm(0.5, vmin=0, vmax=most)
    image = axes.imshow(values, cmap=SHADES, norm=norm, interpolation="none", aspect=aspect)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(RULE)
    bar = figure.colorbar(image, ax=axes, label=label, shrink=0.6, pad=0.02)
    bar.outline.set_visible(False)


def class_ticks(axes: Axes, names: list[str], width: float = WIDTH - 2) -> None:
    """Class names along the bottom, turned where they would touch on an axis ``width`` inches wide."""
    positions, labels = thinned(names, 34)
    turned = LETTER * (2 + max(map(len, labels), default=0)) > width / max(1, len(labels))
    axes.set_xticks(positions, labels, rotation=90 if turned else 0)


def percent_matrix(shares: np.ndarray, lines: Sequence[str], columns: Sequence[str], label: str) -> Figure:
    """Square cells shaded by percentages of each line, with the numbers where they fit."""
    wide = max(3.2, min(7.0, 0.42 * len(columns)))
    tall = max(2.0, min(9.0, wide * len(lines) / max(1, len(columns))))
    figure, axes = canvas(tall + 1.2, wide + 3.4)
    shades(figure, axes, shares, "percent of the class (root scale)", most=100, aspect="equal")
    if max(shares.shape) <= MOST_NUMBERS:
        for (y, x), share in np.ndenumerate(shares):
            if share >= 0.5:
                axes.text(x, y, f"{share:.0f}", ha="center", va="center", color="white" if share > 30 else INK)
    class_ticks(axes, [shown(name) for name in columns], wide)
    positions, labels = thinned([shown(name) for name in lines], 40)
    axes.set_yticks(positions, labels)
    axes.set_xlabel(label)
    axes.set_ylabel("true class")
    return figure
