"""Where the time of a training step on a GPU goes: its kernels, longest first, and their sum beside the floor.

    python -m bench.profile
    python -m bench.profile --stage novel --path compiled

One participant, batches of noise, as in ``bench.throughput``; kernels of one round are told apart by CUPTI, and counted
by step. A kernel that waits is as long as one that works, so the sum is what a step takes where nothing overlaps.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from asterism.data.images import Dataset
from asterism.files import write_json
from asterism.runs.simulate import simulate
from bench.floor import floor
from bench.record import described, results_file
from bench.throughput import CLASSES, Case, experiment, noise, rounds

KINDS = {"dgrad": "dgrad", "wgrad": "wgrad", "init_device_workspace": "wgrad", "fprop": "fprop", "gemm": "products"}
OWN = ("add_up", "settle", "normalise", "descend")  # how names of our own kernels begin


def kind(kernel: str) -> str:
    """What a kernel is for, as far as its name tells."""
    if kernel.startswith(OWN):
        return "own"
    lower = kernel.lower().replace("nvjet", "gemm")
    return next((found for part, found in KINDS.items() if part in lower), "other")


def kernels(stage: str, path: str, each: int, epochs: int) -> tuple[list[dict[str, Any]], int]:
    """Microseconds and launches of each kernel a step, longest first, and the steps they were counted over."""
    images = noise(each)
    dataset = Dataset("noise", images, images.take(torch.arange(CLASSES)))
    case = Case(stage=stage, path=path, workers=1)
    simulation = simulate(experiment(case, epochs, "cuda"), dataset=dataset)
    rounds(simulation, stage, 2)
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        ((count, _),) = rounds(simulation, stage, 1)
    time, launches = Counter[str](), Counter[str]()
    for event in watched.events():
        if str(event.device_type).endswith("CUDA"):
            time[event.name] += event.time_range.elapsed_us()
            launches[event.name] += 1
    steps = count // case.batch
    table = [
        {"kernel": name[:160], "kind": kind(name), "µs": round(took / steps, 1), "launches": launches[name] / steps}
        for name, took in time.most_common()
    ]
    return table, steps


def main(
    stage: Annotated[str, typer.Option(help='"known" or "novel"; of the latter with one known round before it.')] = (
        "known"
    ),
    path: Annotated[str, typer.Option(help='"own" (our kernels), "compiled" or "exact".')] = "own",
    each: Annotated[int, typer.Option(help="Images of every class.")] = 256,
    epochs: Annotated[int, typer.Option(help="Local epochs.")] = 2,
    shown: Annotated[int, typer.Option(help="Kernels printed.")] = 40,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Profiles one round and prints the longest kernels."""
    table, steps = kernels(stage, path, each, epochs)
    total, least = sum(row["µs"] for row in table), floor()
    kinds = Counter[str]()
    for row in table:
        kinds[row["kind"]] += row["µs"]
    summary = {
        "stage": stage, "path": path, "steps": steps, "µs_a_step": round(total, 1),
        "floor_in_turn_µs": round(1e6 * least.seconds[1], 1), "kinds": {k: round(v, 1) for k, v in kinds.items()},
    }  # fmt: skip
    for row in table[:shown]:
        print(f"{row['µs']:8.1f} µs {row['launches']:6.1f} x  {row['kernel'][:110]}")
    print(json.dumps(summary, ensure_ascii=False))
    write_json(out or results_file(f"profile-{stage}-{path}", "cuda"), described() | summary | {"runs": table})


if __name__ == "__main__":
    typer.run(main)
