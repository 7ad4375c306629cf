"""``asterism suite`` on every benchmark of the paper in its official layout, and what it tells and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asterism.cli import app
from tests.suite.conftest import FAILING, TINY
from tests.suite.official import CLASSES, OFFICIAL
from tests.suite.test_experiments import ROOT

SMALL = (
    "split.known=3", "split.novel=[2]", "split.participants=2", "split.alpha=10.0", "federation.clients=2",
    "known.rounds=3", "novel.0.rounds=2", "novel.0.discovery.classes=2", "train.local_epochs=2", "train.batch=16",
    "data.size=16", "model.name=small", "machine.device=cpu", "machine.threads=1",
)  # fmt: skip


def call(*arguments: str, code: int = 0) -> str:
    """What the command prints on standard output."""
    done = CliRunner().invoke(app, ["suite", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def small(*more: str) -> list[str]:
    return [part for setting in (*SMALL, *more) for part in ("--set", setting)]


def folders(base: Path) -> list[str]:
    return ["--out", str(base / "results"), "--work", str(base / "work")]


@pytest.mark.parametrize(
    "dataset", [name if name == "cub200" else pytest.param(name, marks=pytest.mark.slow) for name in OFFICIAL]
)
def test_suite_of_a_benchmark_runs_on_its_official_layout(dataset: str, tmp_path: Path) -> None:
    suite, place, layout = OFFICIAL[dataset]
    layout(tmp_path / "data" / place)
    text = call(
        str(ROOT / f"experiments/{suite}.toml"), "--dataset", dataset, "--only", "gal", "--seeds", "2023", "--json",
        *small(f"data.root={tmp_path / 'data'}"), *folders(tmp_path),
    )  # fmt: skip
    told = json.loads(text)["suites"][suite]
    assert told == {"done": [f"{dataset} gal seed 2023"], "kept": [], "failed": {}, "left": [], "absent": {}}
    (file,) = (tmp_path / "results" / suite).glob("*.json")
    known, novel = json.loads(file.read_text())["stages"]
    assert (known["true"], novel["true"], known["true"] + novel["true"]) == (3, 2, CLASSES)
    assert known["headwise"]["known"] > 100 / 3
    table = (tmp_path / "results" / suite / "table.csv").read_text()
    assert f",{dataset},gal,2023," in table


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY + FAILING, encoding="utf-8")
    return path


def test_rows_seeds_and_datasets_are_chosen_and_the_plan_follows(file: Path, tmp_path: Path) -> None:
    chosen = [str(file), *folders(tmp_path)]
    plan = json.loads(call(*chosen, "--plan", "--rate", "100000", "--json", "--only", "gal", "--seeds", "2023,2024"))
    assert (plan["tiny"]["runs"], plan["tiny"]["known_stages"], plan["tiny"]["refused"]) == (2, 2, {})
    assert "left: 4 runs" in call(*chosen, "--plan", "--rate", "100000", "--only", "gal,gal-without-init")
    call(*chosen, "--only", "gal", "--seeds", "2023", "--quiet")
    after = json.loads(call(*chosen, "--plan", "--json", "--only", "gal"))
    assert (after["tiny"]["runs"], after["tiny"]["kept"]) == (1, 1)
    assert not (tmp_path / "results/tiny/nothing").exists()


def test_a_failed_row_shows_in_the_exit_code_and_the_table(file: Path, tmp_path: Path) -> None:
    told = call(str(file), *folders(tmp_path), "--seeds", "2023", "--quiet", code=1)
    assert "2 done, 0 had been before, 2 failed, 0 left" in told
    assert "telepathy" in (tmp_path / "results/tiny/table.md").read_text()


def test_tables_are_written_anew_without_running(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "reproduction.md"
    call(str(file), *folders(tmp_path), "--table-only", "--page", str(page))
    assert not (tmp_path / "work").exists()
    assert "0 of 4" in page.read_text()
    assert {path.name for path in (tmp_path / "results/tiny").iterdir()} == {"table.md", "table.csv", "table.html"}


def test_no_budget_no_run(file: Path, tmp_path: Path) -> None:
    told = call(str(file), *folders(tmp_path), "--only", "gal", "--budget", "0s")
    assert "0 done, 0 had been before, 0 failed, 2 left" in told and "the same command goes on" in told


def test_mistakes_are_named(file: Path, tmp_path: Path) -> None:
    for arguments, what in (("--only", "gla"), "row"), (("--dataset", "cifar"), "dataset"), (("--budget", "8"), "span"):
        done = CliRunner().invoke(app, ["suite", str(file), *folders(tmp_path), *arguments])
        assert what in str(done.exception)
