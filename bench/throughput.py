"""Images trained a second on a GPU: known and novel class learning, one and several participants at once.

    python -m bench.throughput
    python -m bench.throughput --device cpu --each 2 --epochs 1 --only 5,18     to try it without one

The images are noise: what is learned does not matter here. Every row is the median of several rounds of five clients,
through the whole of the in-process fleet; the rounds of a row's first warm-up (compiling, capturing) are told apart.
Rows of the stage ``reading`` are representations that are only read, as for evaluation, screening and prototypes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer

from asterism.algorithms.represent import represented
from asterism.data.images import Dataset, ImageSet
from asterism.experiment import Experiment, load
from asterism.files import write_json
from asterism.flow import Ask, State, Total
from asterism.model import Speed
from asterism.runs import simulate as simulating
from asterism.runs.simulate import Simulation, simulate
from asterism.seeds import generator
from bench.floor import MATRIX, floor
from bench.record import described, results_file

CLASSES = 100
PATHS = {
    "exact": ["machine.exact=true"],
    "own": ["machine.compile=never"],
    "compiled": ["machine.compile=always", 'machine.kernels="torch"'],
}


@dataclass(frozen=True)
class Case:
    """What one row measures."""

    stage: str = "known"
    path: str = "own"
    workers: int = 5
    batch: int = 256
    settings: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()  # fields of Speed that are turned over


def noise(each: int) -> ImageSet:
    """``each`` images of every class."""
    count = CLASSES * each
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator(0, "pixels"), dtype=torch.uint8)
    names = tuple(f"class {c}" for c in range(CLASSES))
    return ImageSet(pixels, torch.arange(count) % CLASSES, [str(i) for i in range(count)], names)


def experiment(case: Case, epochs: int, device: str) -> Experiment:
    """The settings of a row; every participant holds as many images of every class."""
    return load(
        "cifar100",
        [
            *PATHS[case.path],
            *case.settings,
            "split.partition=iid",
            "split.participants=5",
            f"machine.workers={case.workers}",
            f'machine.device="{device}"',
            f"train.batch={case.batch}",
            f"train.local_epochs={epochs}",
            "novel.0.discovery.classes=20",
            "novel.0.discovery.clusters=20",
        ],
    )


def rounds(simulation: Simulation, stage: str, count: int) -> list[tuple[int, float]]:
    """Images and seconds of each of ``count`` rounds of a stage."""
    state = simulation.state if stage == "known" else _after_one_round(simulation)
    flow, answer, found = simulation.flow(state), None, list[tuple[int, float]]()
    while len(found) < count:
        step = flow.send(answer)
        answer = None
        if isinstance(step, Ask):
            _synchronize()
            started = time.perf_counter()
            answer = simulation.fleet.answer(step)
            _synchronize()
            if answer.failures:
                raise RuntimeError(str(answer.failures[0]))
            if isinstance(answer, Total) and "images" in answer.metrics:
                found.append((int(answer.metrics["images"]), time.perf_counter() - started))
    return found


def _after_one_round(simulation: Simulation) -> State:
    """The state that enters the novel stage, as if known class learning took one round; an untrained one diverges."""
    flow = simulation.flow(simulation.state)
    answer = simulation.fleet.answer(next(flow))  # type: ignore[arg-type]  # the first step is an ask
    state = flow.send(answer)
    assert isinstance(state, State)
    return State("novel-1", 0, state.tensors, state.layout, state.classes)


@contextmanager
def switched(names: tuple[str, ...]) -> Iterator[None]:
    """Networks that are made meanwhile have these parts of their speed turned over."""
    usual = simulating.__dict__["speed"]

    def other(*arguments: Any) -> Speed:
        found: Speed = usual(*arguments)
        return replace(found, **{name: not getattr(found, name) for name in names})

    with patch.object(simulating, "speed", other):
        yield


def measured(case: Case, images: Dataset, epochs: int, repeats: int, device: str) -> dict[str, Any]:
    """One row."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with switched(case.switched):
        simulation = simulate(experiment(case, epochs, device), dataset=images)
    played = read if case.stage == "reading" else rounds
    first, *later = played(simulation, case.stage, repeats + 1)
    rate = statistics.median(count / seconds for count, seconds in later)
    least = floor(batch=case.batch)
    row = {
        **vars(case),
        "images_per_second": round(rate),
        "first_round_seconds": round(first[1], 1),
        "images_a_round": later[0][0],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else None,
    }
    if case.stage == "reading":
        return row
    together, in_turn = least.images_per_second
    return row | {
        "mfu_percent_of_790_tflops": round(100 * rate * least.operations / least.batch / MATRIX, 1),
        "floor": {"overlapping": together, "in_turn": in_turn},
        "percent_of_floor_in_turn": round(100 * rate / in_turn, 1),
    }


def read(simulation: Simulation, stage: str, count: int) -> list[tuple[int, float]]:
    """Images and seconds of reading the representations of one participant's images, several times."""
    share = simulation.fleet._sites[0](simulation.participants[0]).share("known")
    found = list[tuple[int, float]]()
    while len(found) < count:
        _synchronize()
        started = time.perf_counter()
        represented(simulation.worker, share)
        _synchronize()
        found.append((len(share), time.perf_counter() - started))
    return found


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cases() -> list[Case]:
    """The table."""
    several = [Case(workers=n) for n in (1, 2, 3, 5)]
    paths = [Case(path="exact", workers=1), Case(path="compiled", workers=1), Case(path="compiled", workers=5)]
    novel = [Case("novel", workers=n) for n in (1, 3, 5)]
    small = [Case(batch=32, workers=n) for n in (1, 5)]
    terms = [Case(settings=(f"federation.algorithm.name={name}",)) for name in ("fedprox", "scaffold", "moon")]
    searched = [Case(workers=n, switched=("search",)) for n in (1, 5)]
    reading = [
        Case("reading", workers=1, switched=("reading",)),
        Case("reading", workers=1),
        Case("reading", path="compiled", workers=1),
    ]
    return [*several, *paths, *novel, *small, *terms, *searched, *reading]


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
    only: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "",
    each: Annotated[int, typer.Option(help="Images of every class.")] = 256,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 4,
    repeats: Annotated[int, typer.Option(help="Rounds measured.")] = 3,
    device: Annotated[str, typer.Option(help='"cuda" or "cpu".')] = "cuda",
) -> None:
    """Measures each row and prints it as one JSON line."""
    images = noise(each)
    dataset, found = Dataset("noise", images, images.take(torch.arange(CLASSES))), described()
    table = cases()
    for number in map(int, only.split(",")) if only else range(len(table)):
        row = measured(table[number], dataset, epochs, repeats, device)
        print(json.dumps(row), flush=True)
        found["runs"].append(row)
        write_json(out or results_file("throughput", device), found)


if __name__ == "__main__":
    typer.run(main)
