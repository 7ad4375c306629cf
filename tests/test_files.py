from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.errors import AsterismError
from asterism.files import Lines, replacing, write_json, write_text


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow past 4 KiB while the test runs, which the system reports as it does a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_write_that_fails_midway_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("half of the n")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_full_disk_keeps_the_old_file_and_says_what_to_do(tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"kept": True})
    old = path.read_text()
    with pytest.raises(AsterismError, match="free some space"):
        write_json(path, list(range(10_000)))
    assert path.read_text() == old
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_line_cut_in_half_is_taken_off_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    lines = Lines(path)
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
    lines.append({"a": 3})
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'
    assert lines.last() == '{"a": 3}'


def test_last_line_of_nothing_is_none(tmp_path: Path) -> None:
    assert Lines(tmp_path / "events.jsonl").last() is None
