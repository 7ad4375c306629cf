from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = [
    "split.participants=4",
    "federation.clients=2",
    "known.rounds=4",
    "novel.0.rounds=2",
    "train.local_epochs=1",
    "split.alpha=1.0",
    "machine.device=cpu",
]

Start = Callable[..., list[str]]


@pytest.fixture
def command() -> Start:
    """The command line of this package as arguments for ``subprocess``."""

    def made(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "asterism", *arguments]

    return made


def tiny(*more: str) -> list[str]:
    """``--set`` arguments for a run of seconds."""
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


def state_bytes(folder: Path) -> dict[str, bytes]:
    """Every kept state and every entry of a participant's store, by file name."""
    files = sorted([*folder.glob("states/*.safetensors"), *folder.glob("sites/*/*.safetensors")])
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.fixture
def quiet_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
