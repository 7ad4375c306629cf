"""The same run on the virtual nodes of Flower's simulation runtime: real processes of Ray. ``make test-federation``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asterism.experiment import dump, load
from asterism.runs.execute import execute, new_folder
from asterism.runs.store import read_tensors
from tests.federation.rehearse import SMALL
from tests.synthetic import same_bits

pytest.importorskip("ray")
pytestmark = [pytest.mark.federation, pytest.mark.slow]

TWO = {
    **SMALL, "split.participants": 2, "federation.clients": 2, "known.rounds": 1, "novel.0.rounds": 1,
    "machine.threads": 1,
}  # fmt: skip
# What participants remember from one message to the next, whichever process answers it: control variates, screening.
REMEMBERING = {
    "split.participants": 3, "known.rounds": 2, "novel.0.rounds": 2, "federation.algorithm.name": "scaffold",
    "novel.0.screening.filter": True, "novel.0.screening.false_alarm": 0.5,
}  # fmt: skip


def on_virtual_nodes(folder: Path, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """``asterism run --flower`` in a process of its own."""
    config = folder / "experiment.toml"
    config.write_text(dump(load("demo", settings)), encoding="utf-8")
    command = [sys.executable, "-m", "asterism", "run", str(config), "--flower", "--out", str(folder / "ray"), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.parametrize("more", [{}, REMEMBERING], ids=["plain", "remembering"])
def test_virtual_nodes_end_in_the_bits_of_one_process(tmp_path: Path, more: dict[str, Any]) -> None:
    done = on_virtual_nodes(tmp_path, {**TWO, **more})
    assert done.returncode == 0, done.stderr
    alone = new_folder(load("demo", {**TWO, **more}), tmp_path / "alone")
    expected, found = execute(alone), json.loads(done.stdout)
    states = sorted(path.relative_to(alone) for path in alone.glob("states/*.safetensors"))
    assert len(states) >= 2
    for state in states:
        assert same_bits(read_tensors(tmp_path / "ray" / state)[0], read_tensors(alone / state)[0]), state
    assert remembered(tmp_path / "ray") == remembered(alone) != {}
    for stage in [*found["stages"], *expected["stages"]]:
        stage.pop("seconds")
    assert found["stages"] == json.loads(json.dumps(expected["stages"]))


def remembered(run: Path) -> dict[str, bytes]:
    """Every file of the participants' stores, by name."""
    return {str(file.relative_to(run)): file.read_bytes() for file in run.glob("sites/*/*")}


def test_run_that_fails_says_so_and_ends(tmp_path: Path) -> None:
    done = on_virtual_nodes(tmp_path, {**TWO, "federation.deadline": 0.001})
    assert done.returncode != 0
    assert "rounds in a row had fewer than" in done.stderr
    assert not (tmp_path / "ray" / "results.json").exists()


def test_ray_of_its_own_is_reached_from_this_machine_alone() -> None:
    script = (
        "from asterism.runs.flower.simulated import ray_settings; start = ray_settings()['init_args']\n"
        "import ray; ray.init(**start, include_dashboard=False, num_cpus=1); print(ray.util.get_node_ip_address())"
    )
    alone = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=alone)
    assert done.stdout.strip() == "127.0.0.1", done.stderr
