"""Every picture of a report as one function from a record to a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asterism.metrics import UNMATCHED, Table, joint_assignment
from asterism.report.read import RunRecord, SplitRecord, StageTables
from asterism.report.rows import ClassRow
from asterism.report.style import BLUE, GREEN, INK, MARKERS, MUTED, ORANGE, PALETTE, RULE, SHADES
from asterism.report.style import canvas, shown, styled, thinned
from asterism.report.words import PARTS

PART_LOOK = {"known": (BLUE, "o"), "novel": (ORANGE, "s"), "all": (GREEN, "^")}
MOST_CIRCLES = 30
MOST_BARS = 40
MOST_NUMBERS = 20

Points = tuple[tuple[int, float], ...]


@styled
def accuracy_over_rounds(record: RunRecord) -> Figure:
    """Test accuracy after each measured round, by protocol and part; a line stands for both where they agree."""
    figure, axes = canvas(3.6)
    for part, (colour, marker) in PART_LOOK.items():
        headwise, joint = curve(record, "headwise", part), curve(record, "joint", part)
        if not headwise or (part == "all" and headwise == curve(record, "headwise", "known")):
            continue
        name = f"{part}, headwise" if headwise != joint else f"{part} (headwise and joint agree)"
        _line(axes, headwise, label=name, color=colour, marker=marker)
        if joint and joint != headwise:
            look = {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
            _line(axes, joint, label=f"{part}, joint", color=colour, marker=marker, **look)
    _percent_axis(axes)
    _stage_axis(axes, record)
    _legend(figure, axes)
    return figure


@styled
def loss_over_rounds(record: RunRecord) -> Figure:
    """Mean training loss of the chosen clients in each round; stages have losses of their own."""
    figure, axes = canvas(2.8)
    starts = _starts(record)
    for stage in record.results.stages:
        points = tuple(
            (starts[stage.name] + answer.round + 1, answer.loss)
            for answer in record.answered
            if answer.stage == stage.name and answer.loss is not None
        )
        _line(axes, points, color=INK, marker="o")
    axes.set_ylabel("mean loss per step")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    _stage_axis(axes, record)
    return figure


@styled
def partition(split: SplitRecord) -> Figure:
    """Who holds what: sites × classes, circles with an area by images or, where those would not fit, shades.

    Margins show each site's and each class's labelled images. Needs the split's class counts.
    """
    counts = _site_by_class(split)
    sites, classes = counts.shape
    small = max(sites, classes) <= MOST_CIRCLES
    height = 1.9 + sites * (0.34 if small else max(0.05, min(0.24, 6 / sites)))
    figure, axes = canvas(height)
    colours = [PALETTE[s % 2] for s, stage in enumerate(split.stages) for _ in stage.classes]
    if small:
        _circles(axes, counts, colours)
    else:
        _shades(figure, axes, counts, "images (root scale)", norm=PowerNorm(0.5, 0, max(1, int(counts.max()))))
    names = [shown(name) for stage in split.stages for name in stage.classes]
    _class_ticks(axes, names)
    positions, labels = thinned([shown(name) for name in split.participants], 40)
    axes.set_yticks(positions, labels)
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_ylim(sites - 0.5, -0.5)
    axes.set_xlabel("class")
    _stage_borders(axes, split)
    _margins(axes, counts, colours, numbers=small)
    return figure


@styled
def per_class_accuracy(rows: Sequence[ClassRow]) -> Figure:
    """Joint accuracy of each class in class order as bars, headwise as a tick above; a dense strip when many."""
    many = len(rows) > MOST_BARS
    figure, axes = canvas(2.6 if many else 3.2)
    joint = np.array([row.joint or 0.0 for row in rows])
    headwise = np.array([np.nan if row.headwise is None else row.headwise for row in rows])
    novel = np.array([row.stage != rows[0].stage for row in rows])
    for chosen, colour, hatch, label in ((~novel, BLUE, "", "known"), (novel, ORANGE, "////", "novel")):
        if chosen.any():
            x = np.flatnonzero(chosen)
            width = 1.0 if many else 0.72
            edge = "white" if hatch else colour
            axes.bar(x, joint[chosen], width, color=colour, hatch=hatch, edgecolor=edge, lw=0, label=f"{label}, joint")
    if not np.allclose(joint, headwise, equal_nan=True):
        axes.plot(np.arange(len(rows)), headwise, "_", color=INK, ms=3 if many else 12, mew=1.4, label="headwise")
    if len(rows) <= MOST_NUMBERS:
        for x, row in enumerate(rows):
            if row.joint is not None:
                axes.text(x, row.joint / 2, f"{row.joint:.0f}", ha="center", va="center", color="white", weight="bold")
    _class_ticks(axes, [shown(row.name) for row in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    _percent_axis(axes)
    _legend(figure, axes)
    return figure


@styled
def confusion(tables: StageTables) -> Figure:
    """True class × predicted row of the head under joint reading, in percent of each class's test images.

    Rows of the head that stand for a class under the best matching come in that class's order, surplus ones last.
    """
    known, _, joint = tables.counted()
    assignment = joint_assignment(joint, len(known))
    last = np.where(assignment == UNMATCHED, len(tables.classes), assignment)
    order = np.argsort(last, kind="stable")
    shares = 100 * joint[:, order] / np.maximum(joint.sum(axis=1, keepdims=True), 1)
    classes, rows = shares.shape
    side = max(3.2, min(7.0, 0.42 * classes))
    figure, axes = canvas(side + 1.2)
    _shades(figure, axes, shares, "percent of the class", vmin=0, vmax=100, aspect="equal")
    if max(classes, rows) <= MOST_NUMBERS:
        for (y, x), share in np.ndenumerate(shares):
            if share >= 0.5:
                axes.text(x, y, f"{share:.0f}", ha="center", va="center", color="white" if share > 55 else INK)
    _class_ticks(axes, [shown(tables.rows[i]) for i in order])
    positions, labels = thinned([shown(name) for name in tables.classes], 40)
    axes.set_yticks(positions, labels)
    axes.set_xlabel("predicted row of the head")
    axes.set_ylabel("true class")
    return figure


@styled
def overlaid_accuracy(runs: Mapping[str, Sequence[RunRecord]]) -> Figure:
    """Joint accuracy over all classes of several runs: thin lines are seeds, a thick one is their mean."""
    figure, axes = canvas(4.0)
    for number, (name, records) in enumerate(runs.items()):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        curves = [points for record in records if (points := curve(record, "joint", "all"))]
        for points in curves if len(curves) > 1 else []:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=0.8, alpha=0.45)
        if curves:
            _line(axes, _mean(curves), label=shown(name, 40), color=colour, marker=marker)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percent_axis(axes)
    _legend(figure, axes)
    return figure


def curve(record: RunRecord, protocol: str, part: str) -> Points:
    """Rounds since the start of the run and the accuracy measured after each."""
    starts = _starts(record)
    return tuple(
        (starts[event.stage] + event.round, value)
        for event in record.evaluated
        if event.stage in starts and (value := getattr(getattr(event, protocol), part)) is not None
    )


def _starts(record: RunRecord) -> dict[str, int]:
    """Rounds that were over before each stage."""
    rounds = [stage.rounds for stage in record.results.stages]
    return {stage.name: sum(rounds[:s]) for s, stage in enumerate(record.results.stages)}


def _mean(curves: Sequence[Points]) -> Points:
    """The mean at the rounds that every curve has."""
    values = [dict(points) for points in curves]
    shared = sorted(set.intersection(*(set(points) for points in values)))
    return tuple((x, float(np.mean([points[x] for points in values]))) for x in shared)


def _line(axes: Axes, points: Points, **look: object) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, markevery=max(1, len(x) // 20), clip_on=False, **look)  # type: ignore[arg-type]


def _percent_axis(axes: Axes) -> None:
    axes.set_ylim(0, 100)
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y")


def _stage_axis(axes: Axes, record: RunRecord) -> None:
    """Rounds along the bottom, and where there are several stages their borders and names."""
    starts, stages = _starts(record), record.results.stages
    axes.set_xlim(0, sum(stage.rounds for stage in stages))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    for stage in stages if len(stages) > 1 else ():
        start = starts[stage.name]
        if start:
            axes.axvline(start, color=MUTED, linewidth=0.8, linestyle=":")
        top = axes.get_xaxis_transform()
        axes.text(start + stage.rounds / 2, 1.02, stage.name, transform=top, ha="center", color=MUTED)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=3)


def _site_by_class(split: SplitRecord) -> Table:
    counts = split.counts or {}
    rows = [
        [counts.get(s.name, {}).get(site, {}).get(c, 0) for s in split.stages for c in s.classes]
        for site in split.participants
    ]
    return np.array(rows, dtype=np.int64)


def _circles(axes: Axes, counts: Table, colours: Sequence[str]) -> None:
    site, label = np.nonzero(counts)
    held = counts[site, label]
    # An area of 300 square points just fills a cell of a third of an inch.
    largest = 300 * min(1.0, 12 / counts.shape[1])
    axes.scatter(label, site, s=largest * held / held.max(initial=1), c=[colours[c] for c in label], linewidths=0)
    axes.set_xticks(np.arange(counts.shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(counts.shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="both", length=0)


def _shades(figure: Figure, axes: Axes, values: np.ndarray, label: str, **options: object) -> None:
    options = {"aspect": "auto", **options}
    image = axes.imshow(values, cmap=SHADES, interpolation="none", **options)  # type: ignore[arg-type]
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(RULE)
    figure.colorbar(image, ax=axes, label=label, shrink=0.6, pad=0.02).outline.set_visible(False)  # type: ignore[operator]


def _class_ticks(axes: Axes, names: list[str]) -> None:
    positions, labels = thinned(names, 50)
    turned = sum(len(label) + 2 for label in labels) > 90
    axes.set_xticks(positions, labels, rotation=90 if turned else 0)


def _stage_borders(axes: Axes, split: SplitRecord) -> None:
    start = 0
    for stage in split.stages if len(split.stages) > 1 else ():
        if start:
            axes.axvline(start - 0.5, color=MUTED, linewidth=1, linestyle=":")
        start += len(stage.classes)


def _margins(axes: Axes, counts: Table, colours: Sequence[str], *, numbers: bool) -> None:
    """Bars of each class's images above the picture and of each site's to its right."""
    above = axes.inset_axes((0, 1.02, 1, 0.9 / axes.figure.get_figheight()), sharex=axes)  # type: ignore[union-attr]
    beside = axes.inset_axes((1.01, 0, 0.1, 1), sharey=axes)
    above.bar(np.arange(counts.shape[1]), counts.sum(axis=0), 0.72 if numbers else 1.0, color=colours)
    beside.barh(np.arange(counts.shape[0]), counts.sum(axis=1), 0.6 if numbers else 1.0, color=MUTED)
    for inset in (above, beside):
        inset.spines[:].set_visible(False)
        inset.tick_params(length=0, labelleft=False, labelbottom=False)
    if numbers:
        for c, total in enumerate(counts.sum(axis=0).tolist()):
            above.text(c, total, f"{total:,}", ha="center", va="bottom", fontsize=8, color=MUTED)
        for k, total in enumerate(counts.sum(axis=1).tolist()):
            beside.text(total, k, f" {total:,}", ha="left", va="center", fontsize=8, color=MUTED)
