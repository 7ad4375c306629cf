"""A run that is cut at any instant ends, after ``resume``, in the same bits as one that was not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.runs.conftest import Start, state_bytes, tiny

KILLS = 3


def without_seconds(folder: Path) -> dict[str, object]:
    """The results without the one measured time in them, which no two runs share."""
    results: dict[str, object] = json.loads((folder / "results.json").read_text())
    for stage in results["stages"]:  # type: ignore[attr-defined]
        assert stage.pop("seconds") > 0
    return results


def completed(arguments: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param("fedavg", marks=pytest.mark.slow), "scaffold", pytest.param("moon", marks=pytest.mark.slow)],
)
def test_killed_run_resumes_to_the_same_bits(
    tmp_path: Path, command: Start, quiet_environment: dict[str, str], algorithm: str
) -> None:
    settings = tiny("known.rounds=6", f"federation.algorithm.name={algorithm}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    completed(command("run", "demo", "--out", str(whole), "--quiet", *settings), quiet_environment)
    rng = random.Random(algorithm)
    begin = command("run", "demo", "--out", str(cut), "--quiet", *settings)
    again = command("resume", str(cut), "--quiet")
    killed = [_killed_at_a_random_point(begin if n == 0 else again, cut, quiet_environment, rng) for n in range(KILLS)]
    assert any(killed)
    completed(again, quiet_environment)
    assert state_bytes(cut) == state_bytes(whole)
    assert without_seconds(cut) == without_seconds(whole)


def _killed_at_a_random_point(
    arguments: list[str], folder: Path, environment: dict[str, str], rng: random.Random
) -> bool:
    """Starts a process and kills it a moment after the next round it reports; whether it was still running."""
    events = folder / "events.jsonl"
    seen = _rounds(events)
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE)
    while process.poll() is None and _rounds(events) == seen:
        time.sleep(0.002)
    time.sleep(rng.random() * 0.05)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


def _rounds(events: Path) -> int:
    return events.read_text().count('"answered"') if events.exists() else 0


def test_same_seed_gives_the_same_bits_and_another_seed_others(
    tmp_path: Path, command: Start, quiet_environment: dict[str, str]
) -> None:
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        arguments = command("run", "demo", "--out", str(tmp_path / name), "--quiet", *tiny(f"seed={seed}"))
        completed(arguments, quiet_environment)
    assert state_bytes(tmp_path / "one") == state_bytes(tmp_path / "two")
    assert without_seconds(tmp_path / "one") == without_seconds(tmp_path / "two")
    assert (tmp_path / "one/split.json").read_bytes() == (tmp_path / "two/split.json").read_bytes()
    assert state_bytes(tmp_path / "one") != state_bytes(tmp_path / "other")


def test_interrupt_leaves_a_resumable_run_and_says_how(
    tmp_path: Path, command: Start, quiet_environment: dict[str, str]
) -> None:
    folder = tmp_path / "run"
    arguments = command("run", "demo", "--out", str(folder), "--quiet", *tiny("known.rounds=500"))
    process = subprocess.Popen(arguments, env=quiet_environment, stderr=subprocess.PIPE, text=True)
    while _rounds(folder / "events.jsonl") < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"asterism resume {folder}" in said
    assert "Traceback" not in said
    assert list((folder / "states").glob("*.safetensors"))
