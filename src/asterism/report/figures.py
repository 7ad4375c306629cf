"""Every picture of a report as one function from a record to a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asterism.metrics import UNMATCHED, Table, joint_assignment
from asterism.report.axes import (
    MOST_NUMBERS,
    class_ticks,
    legend,
    line,
    percent_axis,
    percent_matrix,
    shades,
    stage_axis,
)
from asterism.report.curves import curve, mean_curve, parts, starts
from asterism.report.read import RunRecord, SplitRecord, StageTables
from asterism.report.rows import ClassRow
from asterism.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARKERS,
    MUTED,
    ORANGE,
    PALETTE,
    WIDTH,
    canvas,
    shown,
    styled,
    thinned,
)

PROTOCOLS = ("headwise", "joint")
PART_LOOK = {"known": (BLUE, "o"), "novel": (ORANGE, "s"), "all": (GREEN, "^")}
MOST_CIRCLES = 30
MOST_BARS = 40


@styled
def accuracy_over_rounds(record: RunRecord) -> Figure:
    """Test accuracy after each measured round by part, a panel per protocol; one panel where both agree."""
    curves = {protocol: parts(record, protocol) for protocol in PROTOCOLS}
    agree = curves["headwise"] == curves["joint"]
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1, 1 if agree else 2, sharey=True, squeeze=False)[0]
    for axes, (protocol, drawn) in zip(panels, curves.items(), strict=False):
        for part, points in drawn.items():
            colour, marker = PART_LOOK[part]
            line(axes, points, label=part, color=colour, marker=marker)
        percent_axis(axes)
        stage_axis(axes, record)
        axes.set_ylabel("test accuracy (%)" if axes is panels[0] else "")
        if not agree:
            axes.set_title(protocol, loc="left", weight="bold", pad=18)
    legend(figure, panels[-1])
    return figure


@styled
def loss_over_rounds(record: RunRecord) -> Figure:
    """Mean training loss of the chosen clients in each round; stages have losses of their own."""
    figure, axes = canvas(2.8)
    started = starts(record)
    for stage in record.results.stages:
        points = tuple(
            (started[stage.name] + answer.round + 1, answer.loss)
            for answer in record.answered
            if answer.stage == stage.name and answer.loss is not None
        )
        line(axes, points, color=INK, marker="o")
    axes.set_ylabel("mean loss per step")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    stage_axis(axes, record)
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
        shades(figure, axes, counts, "images (root scale)", most=counts.max(initial=1))
    names = [shown(name) for stage in split.stages for name in stage.classes]
    class_ticks(axes, names)
    positions, labels = thinned([shown(name) for name in split.participants], 40)
    axes.set_yticks(positions, labels)
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_ylim(sites - 0.5, -0.5)
    axes.set_xlabel("class")
    _stage_borders(axes, split)
    _margins(axes, counts, 0.45 / height, numbers=small)
    return figure


@styled
def per_class_accuracy(rows: Sequence[ClassRow]) -> Figure:
    """Joint accuracy of each class in class order as bars, headwise as a tick above; a dense strip when many."""
    many = len(rows) > MOST_BARS
    figure, axes = canvas(2.6 if many else 3.2)
    joint = np.array([row.joint or 0.0 for row in rows])
    headwise = np.array([np.nan if row.headwise is None else row.headwise for row in rows])
    novel = np.array([row.stage != rows[0].stage for row in rows])
    for chosen, colour, label in ((~novel, BLUE, "known, joint"), (novel, ORANGE, "novel, joint")):
        if chosen.any():
            width = 1.0 if many else 0.72
            axes.bar(np.flatnonzero(chosen), joint[chosen], width, color=colour, label=label)
    if not np.allclose(joint, headwise, equal_nan=True):
        look = {"color": INK, "ms": 3 if many else 14, "mew": 1.4, "clip_on": False}
        axes.plot(np.arange(len(rows)), headwise, "_", label="headwise", **look)  # type: ignore[arg-type]
    for x, row in enumerate(rows if len(rows) <= MOST_NUMBERS else ()):
        if row.joint is not None:
            ink = INK if novel[x] or row.joint < 8 else "white"
            axes.text(x, 3, f"{row.joint:.0f}", ha="center", va="bottom", color=ink, weight="bold")
    class_ticks(axes, [shown(row.name) for row in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    percent_axis(axes)
    legend(figure, axes)
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
    return percent_matrix(shares, tables.classes, [tables.rows[i] for i in order], "predicted row of the head")


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
            line(axes, mean_curve(curves), label=shown(name, 40), color=colour, marker=marker)
    axes.set_xlabel("round")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    percent_axis(axes)
    legend(figure, axes)
    return figure


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
    # In square points: the largest circle just fills a row, or a column where those are narrower.
    largest = min(22.0, 420 / counts.shape[1]) ** 2
    axes.scatter(
        label, site, s=largest * held / held.max(initial=1), c=[colours[c] for c in label.tolist()], linewidths=0
    )
    axes.set_xticks(np.arange(counts.shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(counts.shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="both", length=0)


def _stage_borders(axes: Axes, split: SplitRecord) -> None:
    start = 0
    for stage in split.stages if len(split.stages) > 1 else ():
        if start:
            axes.axvline(start - 0.5, color=MUTED, linewidth=1, linestyle=":")
        start += len(stage.classes)


def _margins(axes: Axes, counts: Table, tall: float, *, numbers: bool) -> None:
    """Bars of each class's images above the picture and of each site's to its right."""
    above = axes.inset_axes((0, 1.02, 1, tall), sharex=axes)
    beside = axes.inset_axes((1.01, 0, 0.1, 1), sharey=axes)
    above.bar(np.arange(counts.shape[1]), counts.sum(axis=0), 0.6 if numbers else 1.0, color=FAINT)
    beside.barh(np.arange(counts.shape[0]), counts.sum(axis=1), 0.6 if numbers else 1.0, color=FAINT)
    for inset in (above, beside):
        inset.spines[:].set_visible(False)
        inset.tick_params(which="both", length=0, labelleft=False, labelbottom=False)
    if numbers:
        for c, total in enumerate(counts.sum(axis=0).tolist()):
            above.text(c, total, f"{total:,}", ha="center", va="bottom", fontsize=8, color=MUTED)
        for k, total in enumerate(counts.sum(axis=1).tolist()):
            beside.text(total, k, f" {total:,}", ha="left", va="center", fontsize=8, color=MUTED)
