"""Wall seconds of whole stages of the paper's first table: 30 rounds of known classes, then 30 of GAL.

    python -m bench.stages --set data.images=FOLDER
    python -m bench.stages --config demo --set known.rounds=2 --set novel.0.rounds=1     to try it in seconds

It is the whole of ``asterism run`` in a folder of its own: images read and split, compiling, rounds, evaluation on
the test images after each, checkpoints, ledger, report. Without the data, noise of CIFAR-100's shape and size takes
its place: the same work, and accuracies that mean nothing; the output says so.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from asterism.data.benchmarks import BENCHMARKS, data_root, place
from asterism.data.sources import DIGITS
from asterism.experiment import Experiment, load
from asterism.files import Lines, write_json
from asterism.runs.execute import execute, new_folder
from asterism.seeds import number
from bench.record import described, results_file

CLASSES, TRAIN, TEST, SIDE = 100, 500, 100, 32  # of CIFAR-100: images of each class, pixels on a side


def noise(file: Path) -> None:
    """``file`` holds images of CIFAR-100's shape and number."""
    rng = np.random.default_rng(number(0, "stage bench"))

    def part(each: int) -> tuple[Any, Any]:
        labels = np.arange(CLASSES).repeat(each)
        return rng.integers(0, 256, (len(labels), SIDE, SIDE, 3), np.uint8), labels

    images, labels = part(TRAIN)
    test_images, test_labels = part(TEST)
    np.savez(file, images=images, labels=labels, test_images=test_images, test_labels=test_labels)


def present(experiment: Experiment) -> bool:
    """Whether the images of the configuration are on this machine."""
    images = experiment.data.images
    if images in BENCHMARKS:
        return place(BENCHMARKS[images], data_root(experiment.data.root)) is not None
    return images == DIGITS or Path(images).exists()


def main(
    config: Annotated[str, typer.Option(help="Configuration.")] = "cifar100",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Further settings.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Runs the configuration once and prints a line for each stage."""
    settings, found = overrides or [], described()
    with tempfile.TemporaryDirectory() as folder:
        real = present(load(config, settings))
        if not real:
            noise(Path(folder) / "noise.npz")
            settings = [*settings, f'data.images="{folder}/noise.npz"']
        began = time.perf_counter()
        run = new_folder(load(config, settings), Path(folder) / "run")
        results = execute(run)
        wall = time.perf_counter() - began
        evaluated = _evaluated(run)
    for stage in results["stages"]:
        row = {
            "config": config, "data": "as configured" if real else "noise", "stage": stage["name"],
            "rounds": stage["rounds"], "images": stage["images"], "seconds": round(stage["seconds"], 2),
            "images_per_second": round(stage["images"] / stage["seconds"], 1),
            "estimated": stage["estimated"], "headwise": stage["headwise"] if real else None,
        }  # fmt: skip
        found["runs"].append(row)
        print(json.dumps(row), flush=True)
    found |= {"wall_seconds": round(wall, 2), "states_evaluated": evaluated}
    if torch.cuda.is_available():
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    print(f"all of it: {wall:.1f} s")
    write_json(out or results_file("stages", "cuda" if torch.cuda.is_available() else "cpu"), found)


def _evaluated(run: Path) -> int:
    return sum(event["event"] == "evaluated" for event in Lines(run / "events.jsonl"))


if __name__ == "__main__":
    typer.run(main)
