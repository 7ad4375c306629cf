"""The same as ``test_resume``, but cut before every single write in turn, within one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism import files
from asterism.experiment import Experiment, load
from asterism.runs import execute as running
from asterism.runs.execute import execute, new_folder
from asterism.runs.progress import Silent
from tests.runs.conftest import TINY, state_bytes
from tests.runs.test_resume import without_seconds


class Cut(BaseException):
    """Stands for a kill: nothing catches it, so nothing after it is written."""


class Writes:
    """Counts what is about to be written, and cuts before write number ``cut_at``."""

    def __init__(self) -> None:
        self.done, self.cut_at = 0, -1

    def __call__(self) -> None:
        if self.done == self.cut_at:
            raise Cut
        self.done += 1


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    counter = Writes()
    append, replace = files.Lines.append, Path.replace

    def counted_append(self: files.Lines, line: dict[str, object]) -> str:
        counter()
        return append(self, line)

    def counted_replace(self: Path, target: Path) -> Path:
        counter()
        return replace(self, target)

    monkeypatch.setattr(files.Lines, "append", counted_append)
    monkeypatch.setattr(Path, "replace", counted_replace)
    # The report is drawn from what was written before; drawing it some fifty times would only cost time.
    monkeypatch.setattr(running, "write_report", lambda folder: folder)
    yield counter


def short(*more: str) -> Experiment:
    return load("demo", [*TINY, "known.rounds=2", "federation.algorithm.name=scaffold", "machine.record=all", *more])


@pytest.mark.parametrize(("apart", "every"), [(0, 1), (3600, 3)])
def test_run_cut_before_any_of_its_writes_resumes_to_the_same_bits(
    tmp_path: Path, writes: Writes, apart: int, every: int
) -> None:
    settings = f"machine.apart={apart}"
    whole = new_folder(short(settings), tmp_path / "whole")
    before = writes.done
    execute(whole, Silent())
    total = writes.done - before
    assert total > 20
    for cut_at in range(0, total, every):
        folder = new_folder(short(settings), tmp_path / f"cut-{cut_at}")
        writes.done, writes.cut_at = 0, cut_at
        with pytest.raises(Cut):
            execute(folder, Silent())
        writes.cut_at = -1
        execute(folder, Silent())
        assert state_bytes(folder) == state_bytes(whole), f"cut before write {cut_at}"
        assert without_seconds(folder) == without_seconds(whole), f"cut before write {cut_at}"
        assert not list(folder.rglob("*.part"))


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, writes: Writes) -> None:
    folder = new_folder(short(), tmp_path / "run")
    results = execute(folder, Silent())
    states = state_bytes(folder)
    assert execute(folder, Silent()) == results
    assert state_bytes(folder) == states
