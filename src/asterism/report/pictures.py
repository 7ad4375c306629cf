"""Every picture that a record has the numbers for, ready for a page, by the name that the page calls it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from matplotlib.figure import Figure

from asterism.report import figures, words
from asterism.report.discovered import DiscoveredStage, matched
from asterism.report.read import RunRecord
from asterism.report.rows import class_rows, newest_tables
from asterism.report.style import svg


def pictures(record: RunRecord) -> dict[str, Markup]:
    """Every picture the record has the numbers for, by the name the page calls it."""
    found: dict[str, Markup] = {}
    tables, rows = newest_tables(record), class_rows(record)
    headline = words.headline(record)
    if record.evaluated:
        label = f"Test accuracy over rounds, ending at: {headline}"
        found["accuracy"] = picture(figures.accuracy_over_rounds(record), "accuracy", label)
    if any(answer.loss is not None for answer in record.answered):
        found["loss"] = picture(figures.loss_over_rounds(record), "loss", "Mean training loss over rounds")
    if record.split and record.split.counts is not None:
        label = "Labelled images of each participant by class; the table of participants gives the totals"
        found["partition"] = picture(figures.partition(record.split), "partition", label)
    if rows:
        label = "Accuracy of each class; the table of classes gives the same numbers"
        found["classes"] = picture(figures.per_class_accuracy(rows), "classes", label)
    if tables and tables.rows:
        label = "True class against predicted class, in percent; the table of classes names the worst mistakes"
        found["confusion"] = picture(figures.confusion(tables), "confusion", label)
    return found


def novel_pictures(record: RunRecord, stages: Sequence[DiscoveredStage]) -> dict[str, Markup]:
    """The pictures of what was discovered; the name of a stage's picture ends with the position of the stage."""
    if not stages:
        return {}
    # Only here, because it brings torch: the page of a known stage alone does without.
    from asterism.report import figures_novel

    found: dict[str, Markup] = {}
    if any(answer.monitors.keys() & figures_novel.MONITORS for answer in record.answered):
        label = "Monitors of training over rounds: " + ", ".join(figures_novel.MONITORS.values())
        found["monitors"] = picture(figures_novel.monitors_over_rounds(record), "monitors", label)
    for number, stage in enumerate(stages):
        for name, figure, label in _of_stage(stage):
            found[f"{name}-{number}"] = picture(figure, f"{name}-{number}", f"{stage.name}: {label}")
    return found


def _of_stage(stage: DiscoveredStage) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and label of each picture of a stage."""
    from asterism.report import figures_novel

    explained = stage.explained
    if explained and explained.estimate:
        figure = figures_novel.estimate_over_radius(explained.estimate, stage.true)
        yield "estimate", figure, f"dense regions among the prototypes over the radius, {stage.sentence}"
    if explained and explained.pool:
        yield "merge", figures_novel.merge(explained), "prototypes of every site, and what they merged into, in a plane"
    if explained and explained.samples:
        yield "map", figures_novel.sample_map(explained), "test images in a plane, by true class and predicted row"
    if stage.tables and len(stage.tables.classes) > len(stage.tables.known):
        figure = figures_novel.discovered_confusion(matched(stage.tables))
        yield "discovered", figure, "true novel classes against discovered rows, in percent"


def picture(figure: Figure, name: str, label: str) -> Markup:
    """The figure as an element of a page."""
    # The element was parsed and written out again, which escapes every name in it.
    return Markup(svg(figure, name, label))
