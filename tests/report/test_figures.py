from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from asterism.report import figures
from asterism.report.curves import curve, mean_curve
from asterism.report.read import RunRecord, read_run
from asterism.report.rows import ClassRow, class_rows
from asterism.report.style import shown, svg, thinned
from tests.report.fabricated import Sample, write_run


def fabricated(folder: Path, sample: Sample | None = None) -> RunRecord:
    return read_run(write_run(folder, sample))


def lines(figure: Figure, panel: int = 0) -> dict[str, list[float]]:
    found = figure.axes[panel].get_lines()
    return {
        str(line.get_label()): np.asarray(line.get_ydata(), float).tolist()
        for line in found
        if np.size(line.get_xdata()) > 1
    }


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter("text")]


def test_one_panel_where_both_protocols_agree(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run")
    figure = figures.accuracy_over_rounds(record)
    assert len(figure.axes) == 1
    assert lines(figure) == {"known": [event.headwise.known for event in record.evaluated]}


def test_a_panel_per_protocol_where_they_differ(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run", Sample(novel=(("x", "y"),), rounds=5))
    figure = figures.accuracy_over_rounds(record)
    for panel, protocol in enumerate(("headwise", "joint")):
        found = lines(figure, panel)
        assert found["known"] == [y for _, y in curve(record, protocol, "known")] and len(found["known"]) == 10
        assert found["novel"] == [y for _, y in curve(record, protocol, "novel")] and len(found["novel"]) == 5
        assert found["all"] == [y for _, y in curve(record, protocol, "all")][5:]


def test_rounds_of_a_later_stage_follow_the_earlier_ones(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run", Sample(novel=(("x", "y"),), rounds=3))
    assert [round for round, _ in curve(record, "joint", "novel")] == [4, 5, 6]


def test_round_without_a_loss_leaves_no_point(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run", Sample(failures=True))
    (line,) = figures.loss_over_rounds(record).axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [round for round in range(1, 21) if round != 7]


def test_circles_have_the_area_of_their_images(tmp_path: Path) -> None:
    split = fabricated(tmp_path / "run").split
    assert split and split.counts
    circles = figures.partition(split).axes[0].collections[0]
    held = [
        split.counts["known"][site].get(name, 0)
        for site in split.participants
        for name in split.stages[0].classes
        if split.counts["known"][site].get(name, 0)
    ]
    areas = np.asarray(circles.get_sizes())  # type: ignore[attr-defined]
    assert np.allclose(areas / areas.max(), np.array(held) / max(held))


@pytest.mark.parametrize(("sites", "classes"), [(10, 100), (100, 200), (1, 31)])
def test_partition_that_is_too_large_for_circles_is_shaded(tmp_path: Path, sites: int, classes: int) -> None:
    names = tuple(f"class {c}" for c in range(classes))
    record = fabricated(tmp_path / "run", Sample(known=names, sites=tuple(f"s{k}" for k in range(sites)), rounds=1))
    assert record.split and record.split.counts
    figure = figures.partition(record.split)
    (image,) = figure.axes[0].get_images()
    cells = np.asarray(image.get_array())
    assert cells.shape == (sites, classes) and cells.sum() == 140 * classes
    assert len(texts(svg(figure, "partition", ""))) < 120


def test_bars_are_the_joint_accuracy_of_each_class(tmp_path: Path) -> None:
    rows = class_rows(fabricated(tmp_path / "run", Sample(novel=(("x", "y"),))))
    axes = figures.per_class_accuracy(rows).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [row.joint for row in rows]  # type: ignore[attr-defined]
    assert lines(axes.figure)["headwise"] == [row.headwise for row in rows]  # type: ignore[arg-type]


def test_many_classes_make_a_strip_without_numbers() -> None:
    rows = [ClassRow(f"class {c}", "known", 100, float(c), float(c)) for c in range(100)]
    axes = figures.per_class_accuracy(rows).axes[0]
    assert len(axes.patches) == 100 and not axes.texts and len(axes.get_xticks()) <= 50


def test_confusion_puts_matched_rows_on_the_diagonal(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run", Sample(novel=(("x", "y", "z"),)))
    axes = figures.confusion(record.tables["novel-1"]).axes[0]
    cells = np.asarray(axes.get_images()[0].get_array())
    assert (cells.argmax(axis=1) == np.arange(10)).all() and np.allclose(cells.sum(axis=1), 100)
    assert [label.get_text() for label in axes.get_xticklabels()][7:] == ["novel-2", "novel-3", "novel-1"]


def test_overlaid_mean_is_the_mean_of_the_seeds(tmp_path: Path) -> None:
    records = [fabricated(tmp_path / str(seed), Sample(seed=seed, rounds=3)) for seed in (1, 2)]
    found = lines(figures.overlaid_accuracy({"demo": records}))
    both = [[y for _, y in curve(record, "joint", "all")] for record in records]
    assert found["demo"] == pytest.approx(np.mean(both, axis=0).tolist())


def test_mean_is_taken_where_every_curve_was_measured() -> None:
    assert mean_curve([((1, 10.0), (2, 20.0)), ((2, 40.0), (3, 50.0))]) == ((2, 30.0),)


def every_picture(record: RunRecord) -> Iterable[Figure]:
    assert record.split
    yield figures.accuracy_over_rounds(record)
    yield figures.loss_over_rounds(record)
    yield figures.partition(record.split)
    yield figures.per_class_accuracy(class_rows(record))
    yield figures.confusion(record.tables["known"])


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run")
    first, second = ([svg(figure, "p", "label") for figure in every_picture(record)] for _ in range(2))
    assert first == second


def test_settings_of_the_reader_neither_matter_nor_change(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run")
    plain = svg(figures.accuracy_over_rounds(record), "p", "label")
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "black"}):
        assert svg(figures.accuracy_over_rounds(record), "p", "label") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9


HOSTILE = ("<script>alert(1)</script>", "a & b", "q\"uo'te", "$x_{1}$", "日本語", "x" * 300, "line\nline\x01", "]]>-->")


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run", Sample(known=HOSTILE))
    for figure in list(every_picture(record))[2:]:
        drawn = svg(figure, "p", 'a "label" <of> it')
        assert "<script" not in drawn
        assert {shown(name) for name in HOSTILE} <= set(texts(drawn))
        assert ElementTree.fromstring(drawn).get("aria-label") == 'a "label" <of> it'


def test_ids_of_two_pictures_never_meet(tmp_path: Path) -> None:
    record = fabricated(tmp_path / "run")
    ids = [
        {element.get("id") for element in ElementTree.fromstring(svg(figure, name, "")).iter()} - {None}
        for name, figure in zip("abcde", every_picture(record), strict=True)
    ]
    assert all(len(found) > 5 for found in ids) and sum(map(len, ids)) == len(set[str | None]().union(*ids))


def test_every_reference_inside_a_picture_is_answered(tmp_path: Path) -> None:
    seen = set[str]()
    for figure in every_picture(fabricated(tmp_path / "run")):
        root = ElementTree.fromstring(svg(figure, "p", ""))
        ids = {element.get("id") for element in root.iter()}
        uses = [value[1:] for e in root.iter() if (value := e.get("href", "")).startswith("#")]
        clips = [value[5:-1] for e in root.iter() if (value := e.get("clip-path", "")).startswith("url(#")]
        assert {*uses, *clips} <= ids
        seen |= {*uses, *clips}
    assert len(seen) > 5


@given(name=st.text())
def test_any_name_becomes_one_short_line(name: str) -> None:
    drawn = shown(name)
    assert len(drawn) <= 22 and "\n" not in drawn and "\x00" not in drawn
    element = ElementTree.Element("text")
    element.text = drawn
    assert (ElementTree.fromstring(ElementTree.tostring(element, encoding="unicode")).text or "") == drawn


@given(number=st.integers(0, 500), most=st.integers(1, 60))
def test_thinned_ticks_are_few_and_begin_at_the_first(number: int, most: int) -> None:
    positions, labels = thinned([str(i) for i in range(number)], most)
    assert len(positions) <= most and [str(p) for p in positions] == labels and positions[:1] == [0][:number]
