"""Memory and time of one round in which every participant answers: it must not grow with their number.

    python -m bench.many_participants

Each participant has four 8×8 images and trains the small network on them for one epoch. Every number of participants
is measured in a process of its own, so that one peak does not hide in another.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from asterism.data.images import Dataset, ImageSet
from asterism.experiment import load
from asterism.files import write_json
from asterism.flow import State
from asterism.runs.simulate import simulate
from asterism.seeds import generator
from bench.record import described, results_file

IMAGES_EACH = 4
CLASSES = 4


def made_up(count: int) -> ImageSet:
    """Noise with labels: what is learned does not matter here."""
    pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=generator(0, "pixels"), dtype=torch.uint8)
    names = tuple(f"class {c}" for c in range(CLASSES))
    return ImageSet(pixels, torch.arange(count) % CLASSES, [str(i) for i in range(count)], names)


def one(participants: int) -> dict[str, float]:
    """Seconds and growth of the process's peak memory for one round with ``participants`` of them."""
    settings = {
        "split.known": CLASSES,
        "split.novel": [],
        "novel": [],
        "split.partition": "iid",
        "split.participants": participants,
        "federation.clients": participants,
        "known.rounds": 1,
        "train.local_epochs": 1,
        "machine.device": "cpu",
    }
    images = made_up(IMAGES_EACH * participants)
    federation = simulate(load("demo", settings), dataset=Dataset("made up", images, made_up(CLASSES)))
    before, started, worked = _peak(), time.perf_counter(), time.process_time()
    flow = federation.flow(federation.state)
    total = federation.fleet.answer(next(flow))  # type: ignore[arg-type]  # the first step is an ask
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    state = flow.send(total)
    assert isinstance(state, State) and total.replies == participants
    return {
        "participants": participants,
        "seconds_per_round": round(seconds, 2),
        "milliseconds_per_participant": round(1e3 * seconds / participants, 3),
        "cpu_milliseconds_per_participant": round(
            1e3 * processor / participants, 3
        ),  # what a busy machine leaves as is
        "peak_growth_mib": round((_peak() - before) / 1024, 1),
    }


def _peak() -> float:
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main(
    counts: Annotated[list[int] | None, typer.Option(help="Numbers of participants.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
    single: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Measures each number of participants and prints one line for each."""
    if single:
        print(json.dumps(one(single)))
        return
    found = described()
    for count in counts or [100, 1_000, 10_000]:
        call = [sys.executable, "-m", "bench.many_participants", "--single", str(count)]
        line = subprocess.run(call, capture_output=True, text=True, check=True).stdout
        print(line.strip())
        found["runs"].append(json.loads(line))
        write_json(out or results_file("many-participants", "cpu"), found)


if __name__ == "__main__":
    typer.run(main)
