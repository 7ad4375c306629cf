from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.errors import AsterismError
from asterism.report.read import read_results, read_run
from asterism.report.rows import class_rows, failure_rows, messages, missed_rounds, site_rows
from asterism.report.words import duration, headline, participants, size
from tests.report.fabricated import Sample, write_run


def edited(path: Path, edit: Callable[[list[str]], list[str]]) -> None:
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(edit(lines)), "utf-8")


def test_every_round_of_a_run_is_read(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", Sample(novel=(("a", "b"),), rounds=4)))
    assert [(e.stage, e.round) for e in record.evaluated] == [
        (stage, round) for stage in ("known", "novel-1") for round in (1, 2, 3, 4)
    ]
    assert len(record.answered) == 8 and set(record.tables) == {"known", "novel-1"}
    assert record.unchained is None and record.resumes == 0


def test_files_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(events=False, ledger=False))
    (folder / "split.json").unlink()
    (folder / "tables" / "known.json").unlink()
    record = read_run(folder)
    assert (record.started, record.answered, record.ledger, record.tables, record.split) == (None, (), (), {}, None)
    assert participants(record) == () and class_rows(record) == () and site_rows(record) == ()
    assert headline(record).startswith("7 known classes, 20 rounds: ")


def test_missing_results_name_the_command_that_makes_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "results.json").unlink()
    with pytest.raises(AsterismError, match="no results yet") as caught:
        read_results(folder)
    assert caught.value.where == str(folder / "results.json") and "asterism resume" in caught.value.fix


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="not a run folder") as caught:
        read_run(tmp_path)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize("name", ["events.jsonl", "ledger.jsonl"])
def test_line_cut_in_half_by_a_kill_is_left_out(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    before = read_run(folder)
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write('{"at": "2025-01-01T00:00:00+00:00", "event": "answered", "site": "sité'[:-1])
    assert read_run(folder) == before


@settings(max_examples=30)
@given(cut=st.integers(1, 4_000))
def test_ledger_cut_anywhere_loses_its_end_only(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = write_run(tmp_path_factory.mktemp("cut") / "run", Sample(rounds=2, events=False))
    whole = read_run(folder).ledger
    path = folder / "ledger.jsonl"
    path.write_bytes(left := path.read_bytes()[:cut])
    record = read_run(folder)
    assert record.ledger == whole[: len(record.ledger)] and record.unchained is None
    assert 0 <= len(record.ledger) - left.count(b"\n") <= 1


@pytest.mark.parametrize("name", ["events.jsonl", "ledger.jsonl"])
def test_damaged_line_in_the_middle_is_named(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    edited(folder / name, lambda lines: [*lines[:2], lines[2][:20] + "\n", *lines[3:]])
    with pytest.raises(AsterismError, match="damaged line") as caught:
        read_run(folder)
    assert caught.value.where == f"{folder / name}, line 3"


def test_event_with_a_wrong_value_names_file_line_and_key(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    edited(
        folder / "events.jsonl", lambda lines: [lines[0], lines[1].replace('"round": 0', '"round": "x"'), *lines[2:]]
    )
    with pytest.raises(AsterismError) as caught:
        read_run(folder)
    assert caught.value.where == f"round in {folder / 'events.jsonl'}, line 2"


def test_round_that_appears_twice_counts_as_it_was_last(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(rounds=3))

    def resumed(lines: list[str]) -> list[str]:
        again = {**json.loads(lines[3]), "loss": 0.125}
        return [
            *lines[:5],
            '{"event": "resumed", "stage": "known", "round": 1}\n',
            json.dumps(again) + "\n",
            *lines[5:],
        ]

    edited(folder / "events.jsonl", resumed)
    record = read_run(folder)
    assert [answer.round for answer in record.answered] == [0, 1, 2]
    assert record.answered[1].loss == 0.125 and record.resumes == 1


def test_two_tasks_of_one_round_both_count(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(rounds=1))
    edited(folder / "events.jsonl", lambda lines: [*lines, lines[1].replace('"task": "known"', '"task": "prototypes"')])
    record = read_run(folder)
    assert [answer.task for answer in record.answered] == ["known", "prototypes"]
    assert sum(row.rounds for row in site_rows(record)) == len(record.answered[0].asked)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [*lines[:4], *lines[5:]], 5),
        (lambda lines: [lines[0].replace('"samples": 412', '"samples": 4'), *lines[1:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    ],
    ids=["line taken out", "line changed", "first line taken out", "lines swapped"],
)
def test_broken_chain_is_found(tmp_path: Path, edit: Callable[[list[str]], list[str]], line: int) -> None:
    folder = write_run(tmp_path / "run")
    edited(folder / "ledger.jsonl", edit)
    assert read_run(folder).unchained == line


def test_expected_accuracy_weighs_classes_by_what_a_site_holds(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(known=("a", "b"), sites=("north", "south", "idle"), rounds=1))
    tables = {"known": [[8, 2], [4, 6]], "novel": [], "joint": [[8, 2], [4, 6]]}
    names = {"format": 1, "stage": "known", "classes": ["a", "b"], "rows": ["a", "b"]}
    (folder / "tables" / "known.json").write_text(json.dumps({**names, **tables}), "utf-8")
    split = json.loads((folder / "split.json").read_text("utf-8"))
    split["counts"] = {"known": {"north": {"a": 30, "b": 10}, "south": {"b": 5}}}
    (folder / "split.json").write_text(json.dumps(split), "utf-8")
    record = read_run(folder)
    assert [(row.joint, row.confused, row.confused_percent) for row in class_rows(record)] == [
        (80.0, "b", 20.0),
        (60.0, "a", 40.0),
    ]
    assert [(row.classes, row.expected) for row in site_rows(record)] == [(2, 75.0), (1, 60.0), (0, None)]


def test_novel_class_is_scored_under_the_best_matching(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(known=("a",), novel=(("b", "c"),), rounds=1))
    tables = {"known": [[10]], "novel": [[1, 9, 0], [9, 0, 1]], "joint": [[9, 0, 1, 0], [0, 1, 9, 0], [2, 7, 0, 1]]}
    names = {"format": 1, "stage": "novel-1", "classes": ["a", "b", "c"], "rows": ["a", "n1", "n2", "n3"]}
    (folder / "tables" / "novel-1.json").write_text(json.dumps({**names, **tables}), "utf-8")
    rows = class_rows(read_run(folder))
    assert [(row.stage, row.headwise, row.joint, row.confused) for row in rows] == [
        ("known", 100.0, 90.0, "b"),
        ("novel-1", 90.0, 90.0, "c"),
        ("novel-1", 90.0, 70.0, "a"),
    ]


def test_only_classes_that_were_learned_count_for_a_site(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", Sample(held_back=("x", "y"))))
    assert sum(row.images for row in site_rows(record)) == 7 * 140
    assert max(row.classes or 0 for row in site_rows(record)) <= 7


def test_failures_are_counted_by_participant_and_reason(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", Sample(failures=True)))
    rows = failure_rows(record)
    assert sum(row.times for row in rows) == sum(row.failures for row in site_rows(record)) == 8
    assert [row.times for row in rows] == sorted((row.times for row in rows), reverse=True)
    assert {row.detail for row in rows} == {"no answer in 60 s"} and missed_rounds(record) == "known 7"


def test_messages_add_up_by_site_and_by_task(tmp_path: Path) -> None:
    lines = read_run(write_run(tmp_path / "run")).ledger
    by_site, by_task = messages(lines, "site"), messages(lines, "task")
    assert sum(row.messages for row in by_site) == by_task[0].messages == len(lines) == 100
    assert sum(row.bytes for row in by_site) == sum(row.bytes for row in by_task)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (3599.7, "1 h 00 min"), (7_630, "2 h 07 min")],
)
def test_duration_never_says_sixty(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("value", "words"), [(0, "0 B"), (999, "999 B"), (999_960, "1.0 MB"), (44_880_528, "44.9 MB")])
def test_size_never_says_thousand(value: int, words: str) -> None:
    assert size(value) == words


def test_headline_says_the_run_in_one_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    results = json.loads((folder / "results.json").read_text("utf-8"))
    results["stages"][0]["headwise"] = {"known": 95.06, "novel": None, "all": 95.06}
    (folder / "results.json").write_text(json.dumps(results), "utf-8")
    assert headline(read_run(folder)) == "7 known classes, 10 participants, 20 rounds: 95.1% known accuracy"
