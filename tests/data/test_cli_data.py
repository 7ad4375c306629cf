"""``asterism data``: what it prints, for people and for programs, and what it leaves on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from asterism import cli_data
from asterism.data import fetch as fetch_module
from asterism.data.benchmarks import BENCHMARKS, Benchmark
from asterism.data.settings import Images
from asterism.data.sources import load
from asterism.errors import AsterismError

runner = CliRunner()


def output(*arguments: str) -> str:
    result = runner.invoke(cli_data.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_tells_what_is_here_what_can_be_fetched_and_what_cannot(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    lines = {line.split()[0]: line for line in output("list", "--root", str(tmp_path)).splitlines()}
    assert set(lines) == {"digits", *BENCHMARKS}
    assert lines["digits"].endswith("always here")
    assert lines["cifar100"].endswith(str(tmp_path / "cifar-100-python"))
    assert lines["cub200"].endswith("1097 MiB to fetch")
    assert lines["cars"].endswith("by hand")


def test_list_as_json_is_for_programs(tmp_path: Path) -> None:
    told = json.loads(output("list", "--root", str(tmp_path), "--json"))
    assert told["root"] == str(tmp_path)
    rows = {row["name"]: row for row in told["benchmarks"]}
    assert set(rows) == set(BENCHMARKS)
    assert (rows["cifar100"]["bytes"], rows["cifar100"]["folder"], rows["cars"]["bytes"]) == (169001437, None, None)


def test_fetch_prints_plain_lines_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(benchmark: Benchmark, root: Path, *, progress: Callable[[int, int], None]) -> Path:
        for done in range(0, 101, 2):
            progress(done << 20, 100 << 20)
        return root / benchmark.name

    monkeypatch.setattr(fetch_module, "fetch", fetched)
    lines = output("fetch", "cifar100", "--root", str(tmp_path)).splitlines()
    assert (lines[0], lines[10]) == ("cifar100: 0 of 100 MiB (0%)", "cifar100: 100 of 100 MiB (100%)")
    assert lines[11:] == [f"cifar100 is in {tmp_path / 'cifar100'}"]


def test_fetch_of_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AsterismError, match="no benchmark 'cifar10'") as error:
        output("fetch", "cifar10")
    assert "cifar100" in error.value.fix


def test_pack_writes_what_loads_again(tmp_path: Path) -> None:
    for i in range(4):
        path = tmp_path / "in" / "ant" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 12), i).save(path)
    (tmp_path / "in" / "ant" / "broken.png").write_bytes(b"broken")
    said = output("pack", str(tmp_path / "in"), str(tmp_path / "out"), "--size", "8", "--skip-bad")
    assert said.splitlines()[0] == f"4 images in 2 shards in {tmp_path / 'out'}"
    assert f"left out: {tmp_path / 'in/ant/broken.png'}" in said
    dataset = load(Images(images=str(tmp_path / "out")), seed=0).dataset
    assert (len(dataset.train), len(dataset.test), dataset.train.shape) == (3, 1, (1, 8, 8))


def test_help_costs_no_heavy_import() -> None:
    program = "import sys, asterism.cli_data; sys.exit(sum(n in sys.modules for n in ('torch', 'numpy', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
