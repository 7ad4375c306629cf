"""The picture of an estimate: dense regions at each radius, or the score of each candidate, and what was read there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from asterism.errors import AsterismError
from asterism.estimation import Estimate
from asterism.estimators import Search
from asterism.files import replacing
from asterism.report.style import BLUE, INK, MUTED, ORANGE, RULE, canvas, styled

KINDS = ("svg", "png")


def stability_curve(found: Estimate) -> Figure:
    """What a method that weighs candidates saw in each of them, else the count at every radius."""
    return count_by_radius(found) if found.search is None else score_by_candidate(found, found.search)


@styled
def score_by_candidate(found: Estimate, search: Search) -> Figure:
    """The score of each number of classes, those that score nearly as well as the best, the estimate, its interval."""
    figure, axes = canvas(3.4)
    (low, high), (least, most) = found.interval, search.near
    axes.axvspan(least - 0.5, most + 0.5, color=RULE, alpha=0.6, linewidth=0, label=f"near the best, {least} to {most}")
    axes.axvspan(low - 0.1, high + 0.1, color=ORANGE, alpha=0.25, linewidth=0, label=f"interval, {low} to {high}")
    axes.axvline(found.estimated, color=ORANGE, linewidth=1.2, label=f"estimate ({found.method}), {found.estimated}")
    axes.plot(search.classes, search.scores, color=BLUE, linewidth=1.3, marker="o", markersize=2.5, label="score")
    axes.set_xlabel("classes")
    axes.set_ylabel("score")
    axes.set_title(found.verdict, loc="left", weight="bold")
    axes.grid(axis="y")
    figure.legend(loc="outside right upper", labelcolor=MUTED)
    return figure


@styled
def count_by_radius(found: Estimate) -> Figure:
    """The count at every radius, the paper's grid on it, the estimate, its interval and its plateau."""
    figure, axes = canvas(3.4)
    low, high = found.interval
    if found.plateau is not None:
        label = f"plateau, {100 * found.plateau.width:.0f}% of its radius wide"
        axes.axvspan(found.plateau.start, found.plateau.end, color=RULE, alpha=0.6, linewidth=0, label=label)
    axes.axhspan(low - 0.1, high + 0.1, color=ORANGE, alpha=0.25, linewidth=0, label=f"interval, {low} to {high}")
    axes.axhline(found.estimated, color=ORANGE, linewidth=1.2, label=f"estimate ({found.method}), {found.estimated}")
    if len(found.curve.radius):
        radius = np.concatenate([[0.0], found.curve.radius, [_right(found)]])
        counts = np.concatenate([[0], found.curve.counts, found.curve.counts[-1:]])
        label = f"every radius, at most {found.exact}"
        axes.plot(radius, counts, drawstyle="steps-post", color=BLUE, linewidth=1.3, label=label)
    label = f"paper's radii, at most {found.grid.counts.max(initial=0)}"
    axes.plot(*found.grid, linestyle="", marker="o", markersize=3.5, color=INK, label=label)
    axes.set_xlim(_left(found), _right(found))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("radius")
    axes.set_ylabel("dense regions")
    axes.set_title(found.verdict, loc="left", weight="bold")
    axes.grid(axis="y")
    figure.legend(loc="outside right upper", labelcolor=MUTED)
    return figure


def write_picture(found: Estimate, path: Path) -> None:
    """``path`` holds the picture, as its ending says."""
    kind = picture_kind(path)
    figure = stability_curve(found)
    with replacing(path) as part:
        _save(figure, part, kind)


def picture_kind(path: Path) -> str:
    """``svg`` or ``png``, or an error that says which endings there are."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise AsterismError(
            f"no kind of picture: {path.suffix or 'no ending'}",
            where=str(path),
            fix=f"end its name in {' or '.join('.' + kind for kind in KINDS)}",
        )
    return kind


@styled
def _save(figure: Figure, path: Path, kind: str) -> Figure:
    figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return figure


def _left(found: Estimate) -> float:
    """Just below the first radius with a region: where there is none there is nothing to see."""
    first = float(found.curve.radius[0]) if len(found.curve.radius) else 0.0
    return max(0.0, first - 0.05 * (_right(found) - first))


def _right(found: Estimate) -> float:
    """Where the curve has ended in its last count, with some room; or 1 where all radii are 0."""
    last = float(found.curve.radius[-1]) if len(found.curve.radius) else 0.0
    return 1.08 * last or 1.0
