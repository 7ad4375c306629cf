from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from asterism import cli
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS
from tests.runs.conftest import tiny

RUNNER = CliRunner()


def said(*arguments: str) -> str:
    """What a command prints on standard output."""
    result = RUNNER.invoke(cli.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What a command that must fail as a user's mistake prints on standard error."""
    monkeypatch.setattr(sys, "argv", ["asterism", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run, everything recorded."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    said("run", "demo", "--out", str(folder), "--quiet", *tiny("known.rounds=2", "machine.record=all"))
    return folder


def test_run_ends_with_a_table_and_the_path_of_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    output = said("run", "demo", "--out", str(folder), "--quiet", *tiny("known.rounds=1"))
    assert "headwise known" in output
    assert f"report: {folder / 'report.html'}" in output.replace("\n", "")
    assert (folder / "report.html").stat().st_size > 10_000


def test_run_folder_holds_every_documented_file(finished: Path) -> None:
    names = {p.name for p in finished.iterdir()}
    assert {
        "config.toml",
        "split.json",
        "events.jsonl",
        "ledger.jsonl",
        "states",
        "results.json",
        "report.html",
    } <= names


def test_results_json_has_exactly_the_documented_keys(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert list(results) == ["run", "seed", "stages"]
    known, novel = results["stages"]
    for stage in results["stages"]:
        assert sorted(stage) == sorted(
            [
                "name",
                "rounds",
                "seconds",
                "images",
                "true",
                "estimated",
                "headwise",
                "joint",
                "nmi",
                "ari",
                "forgetting",
            ]
        )
        assert list(stage["headwise"]) == list(stage["joint"]) == ["known", "novel", "all"]
        assert 0 < stage["headwise"]["known"] <= 100
    assert (known["name"], known["true"], known["rounds"], known["headwise"]["novel"]) == ("known", 7, 2, None)
    assert (novel["name"], novel["true"]) == ("novel-1", 3)
    assert novel["estimated"] >= 1 and 0 < novel["headwise"]["novel"] <= 100
    assert novel["forgetting"] is not None and known["forgetting"] is None


def test_json_output_is_one_document(finished: Path) -> None:
    shown = json.loads(said("results", str(finished), "--json"))
    assert shown["folder"] == str(finished)
    assert shown["stages"][0]["name"] == "known"
    again = json.loads(said("resume", str(finished), "--json"))
    assert again["stages"] == shown["stages"]


def test_several_runs_are_compared_with_mean_and_deviation(tmp_path: Path) -> None:
    out = tmp_path / "many"
    arguments = ("run", "demo", "--seeds", "--out", str(out), "--json", *tiny("known.rounds=1", "seeds=[1, 2]"))
    shown = json.loads(said(*arguments))
    assert [run["seed"] for run in shown["runs"]] == [1, 2]
    known = shown["summary"][0]["headwise.known"]
    values = [run["stages"][0]["headwise"]["known"] for run in shown["runs"]]
    assert known["mean"] == pytest.approx(np.mean(values))
    assert known["std"] == pytest.approx(np.std(values, ddof=1))
    page = said("report", str(out / "seed-1"), str(out / "seed-2"), "--out", str(tmp_path / "both.html"))
    assert Path(page.strip()).read_text().startswith("<!doctype html>")


def test_replay_of_a_recorded_run_ends_in_the_same_state(finished: Path) -> None:
    assert json.loads(said("replay", str(finished), "--json")) == {"stage": "novel-1", "round": 2, "same": True}


def test_piped_run_prints_plain_lines_with_rounds_rate_and_time_left(tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "asterism",
        "run",
        "demo",
        "--out",
        str(tmp_path / "run"),
        *tiny("known.rounds=1"),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "known round 1/1  2 of 2 clients  loss" in done.stderr
    assert "images/s" in done.stderr
    assert "s left" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout


def test_typo_in_a_setting_is_answered_in_three_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(capsys, monkeypatch, "run", "demo", "--set", "known.ronds=3")
    assert error == "error: unknown key 'ronds'\n  where: known.ronds in demo\n  fix:   did you mean 'rounds'?\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing"], "no configuration called 'nothing'"),
        (["run", "demo", "--set", "federation.clients=50"], "50 clients a round, but only 10 participants"),
        (["run", "demo", "--set", "machine.device=tpu9"], "cannot compute on 'tpu9'"),
        (["run", "demo", "--set", "model.name=resnet99"], "no backbone called 'resnet99'"),
        (["run", "demo", "--seeds", "--set", "seeds=[]"], "names no seeds"),
        (["resume", "nowhere"], "not a run folder"),
        (["results", "nowhere"], "nowhere"),
        (["split", "digits", "--known", "99"], "99 classes"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, monkeypatch, *arguments)
    assert error.startswith("error: ")
    assert words in error
    assert "Traceback" not in error


def test_folder_with_something_in_it_is_never_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    before = (finished / "config.toml").read_bytes()
    assert "not empty" in refused(capsys, monkeypatch, "run", "demo", "--out", str(finished))
    assert (finished / "config.toml").read_bytes() == before


def test_second_process_on_the_same_run_is_refused(finished: Path) -> None:
    from asterism.files import locked

    with locked(finished), pytest.raises(AsterismError, match="another process"), locked(finished):
        pass


def test_split_is_shown_saved_and_used(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    shown = said("split", "digits", "--novel", "3", "--participants", "4", "--alpha", "0.5", "-o", str(path))
    assert "site-04" in shown
    assert f"saved: {path}" in shown.replace("\n", "")
    folder = tmp_path / "run"
    said("run", "demo", "--out", str(folder), "--quiet", *tiny("known.rounds=1", f"split.file={path}"))
    used, kept = json.loads((folder / "split.json").read_text()), json.loads(path.read_text())
    assert used["stages"] == kept["stages"]


def test_config_show_prints_a_configuration_that_runs_the_same(tmp_path: Path) -> None:
    shown = said("config", "show", "cifar100", "--set", "known.rounds=4")
    (tmp_path / "mine.toml").write_text(shown)
    assert said("config", "show", str(tmp_path / "mine.toml")) == shown
    assert "rounds = 4" in shown


def test_config_list_and_schema_are_complete() -> None:
    assert "cifar100-two-stage" in said("config", "list")
    schema = json.loads(said("config", "schema"))
    assert {"data", "split", "known", "novel", "federation"} <= set(schema["properties"])


def test_doctor_passes_good_images_and_fails_on_a_broken_one(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(12):
            noise = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / name / f"{i}.png")
    good = RUNNER.invoke(cli.app, ["doctor", str(tmp_path), "--json"])
    assert good.exit_code == 0, good.output
    (tmp_path / "cat" / "broken.png").write_bytes(b"no image")
    bad = RUNNER.invoke(cli.app, ["doctor", str(tmp_path)])
    assert bad.exit_code == 2
    assert "broken.png" in bad.stdout


@pytest.mark.parametrize("method", ESTIMATORS)
def test_a_stage_counts_by_every_estimator_and_its_report_by_the_same(tmp_path: Path, method: str) -> None:
    folder = tmp_path / "run"
    overrides = tiny("known.rounds=1", "novel.0.rounds=1", f"novel.0.discovery.estimator.name={method}")
    (_, novel) = json.loads(said("run", "demo", "--out", str(folder), "--json", *overrides))["stages"]
    explained = json.loads((folder / "explain" / "novel-1.json").read_text())["estimate"]
    assert (explained["method"], explained["estimated"]) == (method, novel["estimated"])
    assert (explained["search"] is None) == (method in ("ppm", "ppm-exact", "louvain"))


def test_estimate_is_a_command(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.repeat(9 * np.eye(4), 5, axis=0))
    document = json.loads(said("estimate", str(tmp_path / "features.npy"), "--method", "silhouette", "--json"))
    assert (document["method"], document["prototypes"]) == ("silhouette", 4)
