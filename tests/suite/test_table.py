"""Tables say what was measured beside what was printed, leave the rest empty, and read the same in every format."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from asterism.metrics import Scores
from asterism.report.read import StageResults
from asterism.suite.identity import decisive, fits
from asterism.suite.page import reproduction
from asterism.suite.paper import Number
from asterism.suite.pictures import pictures
from asterism.suite.plan import Place, Suite, places, planned
from asterism.suite.records import Found, Moment, Record, keep, read_records
from asterism.suite.table import Table, tabled, words
from asterism.suite.written import cells, columns, comma_separated, markdown, web_page, write
from tests.suite.conftest import TINY, read

PAPER = {"known": 72.6, "novel": 45.8, "all": 67.3}  # GAL on CIFAR-100, of which the tiny suite claims to be


def stage(name: str, known: float, novel: float | None, *, estimated: int | None = None) -> StageResults:
    headwise = Scores(known, novel, None if novel is None else (7 * known + 3 * novel) / 10)
    joint = Scores(known - 20, None if novel is None else novel / 2, known - 15)
    return StageResults(
        name=name, rounds=3, seconds=30.0, images=3000, true=7 if name == "known" else 3, estimated=estimated,
        headwise=headwise, joint=joint,
    )  # fmt: skip


def record(suite: Suite, place: Place, novel: float, **more: object) -> Record:
    """A made-up record of a place."""
    plan = planned(suite, place)
    rounds = tuple(float(r) for r in range(4))
    curve = {"round": rounds, "headwise.novel": tuple(novel - 3 + r for r in rounds)}
    values: dict[str, object] = {
        "suite": suite.name, **vars(place), "settings": decisive(plan), "origin": f"m-L {place.seed}",
        "stages": (stage("known", 70.0, None), stage("novel-1", 70.0, novel, estimated=4)), "overhead": 10.0,
        "curves": {"novel-1": curve}, "machine": {"device": "CPU"},
    }  # fmt: skip
    return Record.model_validate(values | more)


def table_of(suite: Suite, novel: Mapping[tuple[str, int], float]) -> Table:
    """The table of a suite where these places (row and seed) were measured."""
    there = [p for p in places(suite) if (p.row, p.seed) in novel]
    return tabled(suite, Found(tuple(record(suite, p, novel[p.row, p.seed]) for p in there)))


def test_cells_hold_mean_and_sample_deviation_and_the_difference(tiny: Suite) -> None:
    table = table_of(tiny, {("gal", 2023): 40.0, ("gal", 2024): 44.0})
    gal, other = table.lines
    assert gal.ours["headwise.novel"].mean == 42.0
    assert gal.ours["headwise.novel"].deviation == pytest.approx(8**0.5)
    assert gal.difference("novel") == pytest.approx(42.0 - PAPER["novel"])
    assert {part: gal.theirs[part].mean for part in PAPER} == PAPER
    assert gal.theirs["novel"].deviation == pytest.approx(1.4**0.5)
    assert gal.seeds == (2023, 2024)
    assert other.seeds == () and other.ours == {}


def test_what_was_not_measured_stays_empty(tiny: Suite) -> None:
    table = table_of(tiny, {("gal", 2023): 40.0})
    measured, empty = (cells(table, line) for line in table.lines)
    assert (measured["novel"], measured["paper novel"], measured["Δ novel"]) == ("40.0", "45.8 ± 1.2", "−5.8")
    assert measured["seeds"] == "1"
    kept = {"method", "paper known", "paper novel", "paper all"}
    assert {name for name, text in empty.items() if text} == kept
    assert '<td class="empty"></td>' in web_page(table)
    (line,) = (row for row in markdown(table).splitlines() if row.startswith("| gal-without-init"))
    assert "|  |  |" in line


def test_comma_separated_reads_back(tiny: Suite) -> None:
    table = table_of(tiny, {("gal", 2023): 40.0, ("gal", 2024): 44.0})
    gal, other = csv.DictReader(io.StringIO(comma_separated(table)))
    assert float(gal["headwise.novel"]) == 42 and float(gal["paper.novel"]) == 45.8
    assert float(gal["difference.novel"]) == pytest.approx(-3.8)
    assert (gal["seeds"], gal["stage"], gal["group"]) == ("2023 2024", "novel-1", "cifar100")
    assert other["headwise.novel"] == "" and float(other["paper.novel"]) == 21.0


def test_time_of_a_shared_known_stage_counts_once(tiny: Suite) -> None:
    rows = {(row, seed): 40.0 for row in ("gal", "gal-without-init") for seed in (2023, 2024)}
    assert table_of(tiny, rows).seconds == 4 * (30 + 10) + 2 * 30


def test_a_failed_row_tells_its_sentence(tiny: Suite) -> None:
    (place, *_) = places(tiny)
    failed = record(tiny, place, 0.0, stages=(), failed="the site was struck by lightning")
    table = tabled(tiny, Found((failed,)))
    assert table.lines[0].seeds == ()
    for text in (markdown(table), comma_separated(table), web_page(table)):
        assert "struck by lightning" in text


def test_departures_are_named(tmp_path: Path) -> None:
    suite = read(tmp_path, TINY.replace('title = "GAL"', 'title = "GAL"\ndepartures = ["How Eq. 10 is read"]'))
    text = markdown(table_of(suite, {("gal", 2023): 40.0}))
    assert "All rows: Augmentation." in text and "GAL: How Eq. 10 is read." in text


def test_the_moment_before_the_first_round(tmp_path: Path) -> None:
    suite = read(tmp_path, 'moment = "start"\n' + TINY.replace('paper = "main"', 'paper = "forgetting"'))
    (place, *_) = places(suite)
    starts = {"novel-1": Moment(headwise=Scores(70.0, 11.0, 52.3), joint=Scores(1.0, 2.0, 3.0))}
    table = tabled(suite, Found((record(suite, place, 40.0, starts=starts),)))
    assert table.lines[0].ours["headwise.novel"].mean == 11.0
    assert "estimated" not in table.lines[0].ours


def test_a_record_reads_back(tiny: Suite, tmp_path: Path) -> None:
    (place, *_) = places(tiny)
    made = record(tiny, place, 40.0)
    file = keep(made, planned(tiny, place), tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/other.json").write_text('{"images_per_second": 1}')
    assert file.parent == tmp_path / "tiny"
    assert read_records(tmp_path).records == (made,)


def test_a_result_outlives_new_settings_at_their_defaults() -> None:
    then = {"a": 1, "b": 2}
    assert fits(then, {"a": 1, "b": 2, "new": 0}, changed={"b": 2})
    assert not fits(then, {"a": 1, "b": 2, "new": 5}, changed={"b": 2, "new": 5})
    assert not fits(then, {"a": 1, "b": 3}, changed={"b": 3})
    assert not fits(then, {"a": 1}, changed={})


def test_numbers_in_words() -> None:
    assert [words(Number(45.83, 1.18)), words(Number(19.0), 0), words(None)] == ["45.8 ± 1.2", "19", ""]


def test_pictures_are_drawn_from_records_alone(tmp_path: Path) -> None:
    suite = read(tmp_path, 'figure = "bars"\n' + TINY)
    drawn = pictures(table_of(suite, {("gal", 2023): 40.0, ("gal-without-init", 2023): 20.0}))
    assert list(drawn) == ["novel-1 cifar100 novel accuracy", "novel-1 cifar100 over the rounds"]
    assert all("<svg" in picture and "GAL" in picture for picture in drawn.values())
    assert pictures(table_of(suite, {})) == {}
    written = write(table_of(suite, {}), tmp_path / "out", drawn)
    (bars, _) = (file for file in written if file.suffix == ".svg")
    assert bars.name == "novel-1-cifar100-novel-accuracy.svg"
    assert ElementTree.parse(bars).getroot().tag == "{http://www.w3.org/2000/svg}svg"


SWEEP = """
[[settings]]
name = "5"
x = 5
set = { "split.novel" = [2] }

[[settings]]
name = "10"
x = 10
"""


@pytest.mark.parametrize(("figure", "paper"), [("curve", "main"), ("count", "class-numbers")])
def test_sweeps_and_counts_are_drawn(tmp_path: Path, figure: str, paper: str) -> None:
    text = TINY.replace('paper = "main"', f'paper = "{paper}"').replace('name = "gal"\n', 'name = "ppm"\n')
    suite = read(tmp_path, f'figure = "{figure}"\naxis = "classes"\n' + text + SWEEP)
    found = Found(tuple(record(suite, place, 40.0) for place in places(suite)))
    drawn = pictures(tabled(suite, found))
    wanted = {"curve": "CIFAR-100 GAL over classes", "count": "estimated against true number of classes"}
    assert wanted[figure] in drawn


def test_a_table_of_the_known_stage_has_no_novel_columns(tmp_path: Path) -> None:
    text = TINY.replace('paper = "main"', 'stages = ["known"]').replace('"novel.0.rounds" = 3', '"novel" = []')
    suite = read(tmp_path, text.replace('set = { "novel.0.algorithm" = { name = "gal" } }', "").replace(
        'set = { "novel.0.discovery.initial" = "random" }', 'set = { "known.eta" = 0.0 }'))  # fmt: skip
    (place, *_) = places(suite)
    table = tabled(suite, Found((record(suite, place, 0.0, stages=(stage("known", 70.0, None),), curves={}),)))
    names, rows = columns(table, table.lines)
    assert names == ["method", "known", "joint known", "true", "seconds", "seeds"]
    assert (rows[0]["known"], rows[0]["seconds"]) == ("70.0", "30")


def test_page_says_what_reproduces_and_what_does_not(tiny: Suite) -> None:
    table = table_of(tiny, {("gal", 2023): 45.0, ("gal-without-init", 2023): 40.0})
    page = reproduction([table])
    assert "Within 2 points of the paper in novel accuracy: GAL (CIFAR-100, -0.8)" in page
    assert "Farther away: gal-without-init (CIFAR-100, +19.0)" in page
    assert "| [Tiny](#tiny) | 2 of 2 |" in page
    assert "asterism suite experiments/tiny.toml" in page
