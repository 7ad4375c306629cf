"""What every measurement says about itself: command, commit, machine, versions, day, and how busy the machine was."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from asterism.runs.execute import commit, versions

RESULTS = Path("results/bench")


def described() -> dict[str, Any]:
    """The circumstances of a measurement, before any of it is done."""
    program = Path(sys.argv[0])
    module = program.parent.name if program.stem == "__main__" else program.stem
    return {
        "command": shlex.join(["python", "-m", f"bench.{module}", *sys.argv[1:]]),
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{processor()}, {platform.machine()}",
        "versions": versions(),
        "load_before": round(os.getloadavg()[0], 2),  # processes that wanted a core in the minute before
        "runs": [],
    }


def processor() -> str:
    """What computes: the GPU where there is one, else how many cores of which processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} CPU cores, {_model()}"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system than Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def results_file(bench: str, device: str) -> Path:
    """Where a measurement goes that was given no file: machine, day and what was measured."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"cpu{len(os.sched_getaffinity(0))}"
    short = "h200" if "H200" in name else name.split()[-1].lower()
    return RESULTS / f"{short}-{datetime.now(UTC):%Y%m%d}-{bench}.json"
