"""The pictures of what was discovered: the estimate, the merge, the map, the confusion, and training's monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asterism.estimation import Estimate, Plateau
from asterism.estimators import Search
from asterism.prototypes import Curve
from asterism.report.axes import line, percent_matrix, stage_axis
from asterism.report.curves import starts
from asterism.report.discovered import Matched
from asterism.report.explained import CurveRecord, EstimateRecord, Explained, Place, Row, SearchRecord, Seen
from asterism.report.read import RunRecord
from asterism.report.stability import stability_curve
from asterism.report.style import FAINT, INK, MARKERS, MUTED, PALETTE, RED, RULE, WIDTH, canvas, shown, styled

MONITORS = {"feature_norm": "mean norm of the features", "largest_weight": "mean largest SWL weight"}
SHAPES = (*MARKERS, "<", ">", "p", "h", "d", "8")
EARLIER_SHAPE = "."
MOST_IN_LEGEND = 24
MOST_STARS_NAMED = 40
LARGEST = 15.0  # diameter of the largest prototype, in points


@styled
def estimate_over_radius(record: EstimateRecord, true: int) -> Figure:
    """The stability curve of an estimate, and the true number of classes as a dashed line."""
    figure = stability_curve(as_estimate(record))
    (axes,) = figure.axes
    draw = axes.axhline if record.search is None else axes.axvline
    draw(true, color=RED, linewidth=1.2, linestyle="--", label=f"true, {true}")
    for legend in list(figure.legends):
        legend.remove()
    figure.legend(loc="outside right upper", labelcolor=MUTED)
    return figure


def as_estimate(record: EstimateRecord) -> Estimate:
    """The estimate that was written down, without what it cost."""
    plateau = record.plateau
    return Estimate(
        method=record.method,
        estimated=record.estimated,
        interval=record.interval,
        prototypes=record.prototypes,
        seconds=0.0,
        curve=_curve(record.curve),
        grid=_curve(record.grid),
        exact=record.exact,
        plateau=None if plateau is None else Plateau(plateau.start, plateau.end, plateau.width),
        sites=(),
        search=None if record.search is None else _search(record.search),
    )


def _search(record: SearchRecord) -> Search:
    return Search(np.array(record.classes, np.int64), np.array(record.score, np.float64), record.near)


def _curve(record: CurveRecord) -> Curve:
    return Curve(np.array(record.radius, dtype=np.float64), np.array(record.count, dtype=np.int64))


@styled
def merge(explained: Explained) -> Figure:
    """Local prototypes by site, as large as what is behind them, tied to the global prototypes they merged into."""
    figure, axes = canvas(5.4)
    sites = list(dict.fromkeys(prototype.site for prototype in explained.pool))
    largest = max(prototype.size for prototype in explained.pool)
    for prototype in explained.pool:
        begin = explained.rows[prototype.row].begin
        axes.plot([prototype.x, begin.x], [prototype.y, begin.y], color=FAINT, linewidth=0.5, zorder=1)
    for number, site in enumerate(sites):
        own = [prototype for prototype in explained.pool if prototype.site == site]
        # The area, not the diameter, tells the size; the smallest must still be seen.
        areas = [max(12.0, LARGEST**2 * prototype.size / largest) for prototype in own]
        colour, marker = _look(number)
        axes.scatter(
            *_places(own), areas, c=colour, marker=marker, linewidths=0.4, edgecolors="white", alpha=0.85, zorder=2
        )
    _stars(axes, explained.rows, [row.begin for row in explained.rows])
    _plane(axes)
    if len(sites) <= MOST_IN_LEGEND:
        handles = [_sign(*_look(number)) for number in range(len(sites))]
        figure.legend(handles, [shown(site) for site in sites], loc="outside right upper", title="prototypes of")
    return figure


@styled
def sample_map(explained: Explained) -> Figure:
    """Test images of a stage's classes: the colour is the true class, the shape the row they are predicted as."""
    figure, axes = canvas(5.4)
    classes = list(dict.fromkeys(sample.true for sample in explained.samples))
    colours = dict(zip(classes, _colours(len(classes)), strict=True))
    shapes = {row.name: SHAPES[n % len(SHAPES)] for n, row in enumerate(explained.rows)}
    groups: dict[tuple[str, str], list[Seen]] = {}
    for sample in explained.samples:
        look = colours[sample.true], shapes.get(sample.row, EARLIER_SHAPE)
        groups.setdefault(look, []).append(sample)
    for (colour, marker), own in groups.items():
        axes.scatter(*_places(own), 34, c=colour, marker=marker, linewidths=0, alpha=0.75)
    _stars(axes, explained.rows, explained.rows)
    _plane(axes)
    _map_legends(figure, colours, shapes)
    return figure


@styled
def discovered_confusion(matched: Matched) -> Figure:
    """True novel classes against discovered rows in the order of the best matching, with all known ones folded."""
    return percent_matrix(matched.shares, matched.lines, matched.columns, "predicted row of the head")


@styled
def monitors_over_rounds(record: RunRecord) -> Figure:
    """What watches over training: a panel for each monitor that was told."""
    told = [name for name in MONITORS if any(name in answer.monitors for answer in record.answered)]
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    started = starts(record)
    for axes, name in zip(figure.subplots(1, len(told), squeeze=False)[0], told, strict=True):
        for stage in record.results.stages:
            points = tuple(
                (started[stage.name] + answer.round + 1, answer.monitors[name])
                for answer in record.answered
                if answer.stage == stage.name and name in answer.monitors
            )
            line(axes, points, color=INK, marker="o")
        axes.set_ylabel(MONITORS[name])
        axes.set_ylim(0, 1 if name == "largest_weight" else None)
        axes.grid(axis="y")
        stage_axis(axes, record, _first_told(record, told))
    return figure


def _first_told(record: RunRecord, told: Sequence[str]) -> int:
    """Rounds before the first stage that told a monitor."""
    stages = {answer.stage for answer in record.answered if set(told) & set(answer.monitors)}
    return min(start for stage, start in starts(record).items() if stage in stages)


def _look(number: int) -> tuple[str, str]:
    """Colour and marker that tell up to about ninety things apart."""
    return PALETTE[number % len(PALETTE)], SHAPES[number // len(PALETTE) % len(SHAPES)]


def _sign(colour: str, marker: str) -> Line2D:
    return Line2D([], [], linestyle="", color=colour, marker=marker)


def _colours(number: int) -> list[str]:
    if number <= len(PALETTE):
        return list(PALETTE[:number])
    return [to_hex(colour) for colour in colormaps["turbo"](np.linspace(0.03, 0.97, number))]


def _places(points: Sequence[Place]) -> tuple[list[float], list[float]]:
    return [point.x for point in points], [point.y for point in points]


def _stars(axes: Axes, rows: Sequence[Row], places: Sequence[Place]) -> None:
    """A star with its name for each row."""
    axes.scatter(*_places(places), s=170, marker="*", c=INK, linewidths=0.8, edgecolors="white", zorder=4)
    for row, place in zip(rows, places, strict=True) if len(rows) <= MOST_STARS_NAMED else ():
        axes.annotate(
            shown(row.name),
            (place.x, place.y),
            (6, 5),
            textcoords="offset points",
            fontsize=8.5,
            weight="bold",
            zorder=5,
        )


def _plane(axes: Axes) -> None:
    """A plane whose directions have no unit, so that it needs no numbers."""
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(RULE)


def _map_legends(figure: Figure, colours: Mapping[str, str], shapes: Mapping[str, str]) -> None:
    if len(colours) <= MOST_IN_LEGEND:
        handles = [_sign(colour, "o") for colour in colours.values()]
        figure.legend(handles, [shown(name) for name in colours], loc="outside right upper", title="true class")
    if len(shapes) <= MOST_IN_LEGEND:
        handles = [_sign(MUTED, marker) for marker in (*shapes.values(), EARLIER_SHAPE)]
        names = [*(shown(name) for name in shapes), "a row of earlier stages"]
        figure.legend(handles, names, loc="outside right lower", title="predicted as")
