from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asterism.errors import AsterismError
from asterism.report.page import write_comparison, write_report
from tests.report.fabricated import Sample, write_run

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = ("<script>alert(1)</script>", "</style><b>", "a & b", '" onload="x', "日本語", "x" * 300, "</svg>", "--><!--")


class Outline(HTMLParser):
    """What a page consists of; ``unbalanced`` lists end tags that close something else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.attributes.append((tag, found))
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def says(self, words: str) -> bool:
        return words in " ".join("".join(self.words).split())


def report(folder: Path, sample: Sample | None = None) -> tuple[str, Outline]:
    text = write_report(write_run(folder, sample)).read_text("utf-8")
    return text, Outline(text)


SAMPLES = {
    "known only": Sample(),
    "novel stages": Sample(novel=(("x", "y"), ("z",)), failures=True),
    "held back": Sample(held_back=("x", "y")),
    "bare": Sample(events=False, ledger=False, counts=False),
    "hostile names": Sample(known=HOSTILE, sites=HOSTILE, failures=True),
    "large": Sample(
        known=tuple(f"class {c}" for c in range(100)), sites=tuple(f"site-{k:03d}" for k in range(100)), rounds=2
    ),
}


Pages = Callable[[str], tuple[str, Outline]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The page of a named sample, drawn once for every test that only reads it."""

    @cache
    def inside(name: str) -> tuple[str, Outline]:
        return report(tmp_path_factory.mktemp("run") / "run", SAMPLES[name])

    return inside


@pytest.mark.parametrize("name", SAMPLES)
def test_page_is_sound_and_needs_nothing_else(pages: Pages, name: str) -> None:
    text, outline = pages(name)
    assert text.startswith("<!doctype html>") and '<html lang="en">' in text
    assert (outline.unbalanced, outline.open) == ([], [])
    assert len(outline.ids) == len(set(outline.ids))
    assert "script" not in outline.tags and "link" not in outline.tags and "img" not in outline.tags
    assert not [link for link in outline.links if not link.startswith(("#", "data:image/png;base64,"))]
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert not re.search(r"https?:|@import|url\((?!#)", text)


@pytest.mark.parametrize("name", SAMPLES)
def test_page_can_be_read_aloud(pages: Pages, name: str) -> None:
    _, outline = pages(name)
    pictures = [found for tag, found in outline.attributes if tag == "svg"]
    assert all(found["role"] == "img" and found["aria-label"] for found in pictures)
    assert all(found.get("scope") for tag, found in outline.attributes if tag == "th")
    assert outline.tags.count("title") == outline.tags.count("h1") == outline.tags.count("main") == 1
    assert outline.tags.count("table") == outline.tags.count("caption")


def test_hostile_names_stay_names(pages: Pages) -> None:
    text, outline = pages("hostile names")
    assert "<script" not in text and "<b>" not in text
    assert not [found for _, found in outline.attributes if "onload" in found]
    assert all(outline.says(name) for name in HOSTILE)


def test_page_holds_no_control_characters(tmp_path: Path) -> None:
    text, outline = report(tmp_path / "run", Sample(known=("bell\x07", "null\x00", "next\x85"), rounds=2))
    assert not set(text) & {"\x00", "\x07", "\x85"} and outline.says("bell�") and outline.says("null�")


def test_hostile_settings_stay_settings(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    config = folder / "config.toml"
    config.write_text("# <script>alert(0)</script>\n" + config.read_text("utf-8") + 'x = "</pre><script>"\n', "utf-8")
    text = write_report(folder).read_text("utf-8")
    assert "<script" not in text and "&lt;script&gt;alert(0)" in text and "&lt;/pre&gt;" in text


def test_equal_runs_give_equal_pages(pages: Pages, tmp_path: Path) -> None:
    first, _ = pages("novel stages")
    second, _ = report(tmp_path / "elsewhere", SAMPLES["novel stages"])
    assert first == second


def test_headline_opens_the_page(tmp_path: Path) -> None:
    _, outline = report(tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))
    known = results["stages"][0]["headwise"]["known"]
    assert outline.says(f"7 known classes, 10 participants, 20 rounds: {known:.1f}% known accuracy")


def test_known_only_page_has_no_empty_novel_columns(pages: Pages) -> None:
    _, known_only = pages("known only")
    _, with_novel = pages("novel stages")
    assert not known_only.says("forgetting") and with_novel.says("forgetting")
    assert known_only.says("With known classes only, both protocols agree.")
    assert not with_novel.says("both protocols agree")


def test_failures_are_shown_only_where_there_were_any(pages: Pages) -> None:
    _, without = pages("known only")
    _, with_failures = pages("novel stages")
    assert "failures" not in without.ids and not without.says("failures")
    assert "failures" in with_failures.ids and with_failures.says("no answer in 60 s")
    assert with_failures.says("left the model as it was: known 7; novel-1 7; novel-2 7.")


def test_stage_that_was_split_but_not_learned_is_named(pages: Pages) -> None:
    assert pages("held back")[1].says("This run has not learned novel-1.")
    assert not pages("novel stages")[1].says("has not learned")


def test_bare_run_still_has_results_classes_and_settings(pages: Pages) -> None:
    _, outline = pages("bare")
    assert {"results", "sites", "classes", "settings"} <= set(outline.ids)
    assert not {"rounds", "ledger", "failures"} & set(outline.ids)
    assert not outline.says("expected accuracy") and not outline.says("Expected accuracy")


@pytest.mark.parametrize(
    ("partition", "words"),
    [("class", "with α = 0.1, class by class"), ("by-site", "that the manifest names"), ("iid", "dealt at random")],
)
def test_page_explains_how_images_were_dealt(tmp_path: Path, partition: str, words: str) -> None:
    folder = write_run(tmp_path / "run", SAMPLES["bare"])
    split = json.loads((folder / "split.json").read_text("utf-8"))
    split["settings"]["partition"] = partition
    (folder / "split.json").write_text(json.dumps(split), "utf-8")
    assert Outline(write_report(folder).read_text("utf-8")).says(words)


def test_paper_numbers_stand_beside_ours(tmp_path: Path) -> None:
    paper = "\n[paper]\nknown = 72.6\nnovel = 45.8\nall = 67.3\n"
    _, outline = report(tmp_path / "run", Sample(novel=(("x", "y"),), paper=paper))
    assert outline.says("printed in the paper 72.6 45.8 67.3")


def test_ledger_section_says_whether_the_chain_holds(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Sample(events=False, counts=False))
    assert Outline(write_report(folder).read_text("utf-8")).says("chain of hashes is intact")
    lines = (folder / "ledger.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:3] + lines[4:]), "utf-8")
    broken = Outline(write_report(folder).read_text("utf-8"))
    assert broken.says("breaks at line 4") and not broken.says("is intact")


def test_failed_writing_keeps_the_page_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run")
    before = write_report(folder).read_text("utf-8")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AsterismError, match="No space"):
        write_report(folder)
    assert (folder / "report.html").read_text("utf-8") == before
    assert [path.name for path in folder.iterdir() if path.name.endswith(".part")] == []


def test_comparison_sets_experiments_side_by_side(tmp_path: Path) -> None:
    seeds = [write_run(tmp_path / f"demo-{seed}", Sample(seed=seed, rounds=3)) for seed in (1, 2, 3)]
    other = write_run(tmp_path / "other", Sample(name="<i>moon</i>", rounds=3))
    text = write_comparison([*seeds, other], tmp_path / "comparison.html").read_text("utf-8")
    outline = Outline(text)
    values = [json.loads((f / "results.json").read_text("utf-8"))["stages"][0]["joint"]["all"] for f in seeds]
    mean = sum(values) / 3
    deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    assert outline.says(f"{mean:.1f} ± {deviation:.1f}") and outline.says("demo: seeds 1, 2, 3")
    assert "<i>" not in text and outline.says("<i>moon</i>: seed 2023")
    assert (outline.unbalanced, outline.open) == ([], [])
    assert all(found.get("scope") for tag, found in outline.attributes if tag == "th")


def test_comparison_of_runs_without_events_has_a_table_and_no_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SAMPLES["bare"])
    outline = Outline(write_comparison([folder], tmp_path / "comparison.html").read_text("utf-8"))
    assert "svg" not in outline.tags and "table" in outline.tags
