"""The figures of a suite, drawn from its records alone: bars, curves, counts, and accuracy over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asterism.report.axes import line, percent_axis
from asterism.report.style import BLUE, FAINT, GREEN, MARKERS, MUTED, ORANGE, PALETTE, WIDTH, shown, styled, svg
from asterism.suite.plan import Choice
from asterism.suite.records import PARTS, Record
from asterism.suite.table import Line, Measured, Table

PART_LOOK = {"known": (BLUE, "o"), "novel": (ORANGE, "s"), "all": (GREEN, "^")}
MOST_CURVES = len(PALETTE)


def pictures(table: Table) -> dict[str, str]:
    """Every picture that the records of a table have something to show in, as svg elements by name."""
    drawn: dict[str, Figure] = {}
    for stage, group in table.parts:
        if (lines := [found for found in table.part(stage, group) if found.ours]) and table.suite.figure == "bars":
            drawn[f"{stage} {group} novel accuracy"] = bars(table, lines)
        if over_rounds := _curves(table, stage, group):
            drawn[f"{stage} {group} over the rounds"] = rounds(over_rounds)
    if table.suite.figure == "curve":
        drawn |= _sweeps(table)
    if table.suite.figure == "count" and any("estimated" in found.ours for found in table.lines):
        drawn["estimated against true number of classes"] = counts(table)
    return {name: svg(figure, _id(name), name) for name, figure in drawn.items()}


def _id(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


@styled
def bars(table: Table, lines: Sequence[Line]) -> Figure:
    """Novel accuracy of each row as a bar, headwise and joint, the printed number as a line across it."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.36 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for y, found in enumerate(reversed(lines)):
        _bar(axes, y + 0.18, found.ours.get("headwise.novel"), ORANGE)
        _bar(axes, y - 0.18, found.ours.get("joint.novel"), FAINT)
        if "novel" in found.theirs:
            axes.plot([found.theirs["novel"].mean] * 2, [y - 0.02, y + 0.38], color=BLUE, linewidth=2.5)
    for colour, label in ((ORANGE, "headwise"), (FAINT, "joint"), (BLUE, "paper, headwise")):
        axes.plot([], [], color=colour, linewidth=4, label=label)
    axes.set_yticks(range(len(lines)), [shown(table.suite.row(found.row).shown, 40) for found in reversed(lines)])
    axes.set_xlabel("novel accuracy (%)")
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return figure


def _bar(axes: Axes, y: float, found: Measured | None, colour: str) -> None:
    if found is not None:
        axes.barh(y, found.mean, 0.32, xerr=found.deviation, color=colour, ecolor=MUTED)


def _curves(table: Table, stage: str, group: str) -> dict[str, list[tuple[int, float]]]:
    """By row, rounds and the mean headwise novel accuracy of the seeds; only rounds that all of them measured."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in table.suite.rows:
        records = [r for r in table.records if (r.place.group, r.row) == (group, row.name) and stage in r.curves]
        if points := mean_curve(records, stage):
            found[row.shown] = points
    return found


def mean_curve(records: Sequence[Record], stage: str) -> list[tuple[int, float]]:
    """Rounds and the mean headwise novel accuracy over records; only rounds that all of them measured."""
    values = [
        {int(r): v for r, v in zip(c["round"], c["headwise.novel"], strict=True) if r is not None and v is not None}
        for record in records
        if (c := record.curves[stage])
    ]
    shared = sorted(set.intersection(*map(set, values))) if values else []
    return [(r, fmean(found[r] for found in values)) for r in shared] if len(shared) > 2 else []


@styled
def rounds(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Novel accuracy of every row over the rounds of its stage."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    for i, (name, points) in enumerate(curves.items()):
        look = {"color": PALETTE[i % MOST_CURVES], "marker": MARKERS[i % len(MARKERS)]}
        dashes = "-" if i < MOST_CURVES else "--"
        line(axes, tuple(points), label=shown(name, 40), linestyle=dashes, **look)
    percent_axis(axes)
    axes.set_ylabel("novel accuracy, headwise (%)")
    axes.set_xlabel("round of the stage")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(left=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", ncols=1)
    return figure


def _sweeps(table: Table) -> dict[str, Figure]:
    """A curve over whatever has an x, the settings or the rows, for each dataset and (of settings) each row."""
    drawn = {}
    for dataset in table.suite.datasets:
        over = {row.name: [found for found in table.lines if found.row == row.name] for row in table.suite.rows}
        if not table.suite.settings:
            over = {"": list(table.lines)}
        for row, lines in over.items():
            mine = [found for found in lines if found.group.partition("/")[0] == dataset.name]
            points = [(x, found) for found in mine if (x := _choice(table, found).x) is not None and found.ours]
            if len(points) > 1:
                name = " ".join(part for part in (dataset.shown, row and table.suite.row(row).shown) if part)
                drawn[f"{name} over {table.suite.axis}"] = sweep(sorted(points, key=lambda p: p[0]), table.suite.axis)
    return drawn


def _choice(table: Table, found: Line) -> Choice:
    setting = found.group.partition("/")[2]
    return table.suite.setting(setting) if setting else table.suite.row(found.row)


@styled
def sweep(points: Sequence[tuple[float, Line]], axis: str) -> Figure:
    """Accuracies over one setting: ours as filled markers with deviations, the printed ones as hollow ones."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for part in PARTS:
        colour, marker = PART_LOOK[part]
        ours = [(x, found.ours[f"headwise.{part}"]) for x, found in points if f"headwise.{part}" in found.ours]
        theirs = [(x, found.theirs[part].mean) for x, found in points if part in found.theirs]
        axes.errorbar(
            [x for x, _ in ours], [m.mean for _, m in ours], [m.deviation or 0 for _, m in ours],
            color=colour, marker=marker, label=part, capsize=2,
        )  # fmt: skip
        if theirs:
            hollow: dict[str, Any] = {"markerfacecolor": "white", "linestyle": ":", "linewidth": 1.0}
            axes.plot(*zip(*theirs, strict=True), color=colour, marker=marker, label=f"{part}, paper", **hollow)
    if min(x for x, _ in points) > 0 and max(x for x, _ in points) >= 20 * min(x for x, _ in points):
        axes.set_xscale("log")
    percent_axis(axes)
    axes.set_ylabel("headwise accuracy (%)")
    axes.set_xlabel(axis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", ncols=1)
    return figure


@styled
def counts(table: Table) -> Figure:
    """Estimated against true number of classes, row by row; the diagonal is right, hollow marks are printed ones."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes = figure.subplots()
    most = 1.0
    for i, row in enumerate(table.suite.rows):
        look: dict[str, Any] = {"color": PALETTE[i % MOST_CURVES], "marker": MARKERS[i % len(MARKERS)]}
        look["linestyle"] = "none"
        mine = [found for found in table.lines if found.row == row.name and "estimated" in found.ours]
        x = [found.true or 0 for found in mine]
        y = [found.ours["estimated"] for found in mine]
        axes.errorbar(x, [m.mean for m in y], [m.deviation or 0 for m in y], label=row.shown, capsize=2, **look)
        printed = [(found.true or 0, found.theirs["estimated"].mean) for found in mine if "estimated" in found.theirs]
        if printed:
            axes.plot(*zip(*printed, strict=True), markerfacecolor="none", label=f"{row.shown}, paper", **look)
        most = max([most, *x, *(m.mean for m in y)])
    axes.plot([0, most], [0, most], color=MUTED, linewidth=0.8)
    axes.set_xlabel("true number of novel classes")
    axes.set_ylabel("estimated number")
    axes.grid()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", ncols=1)
    return figure
