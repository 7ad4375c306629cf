"""How many images a second a site can screen: read them, represent them, score them, call them known or novel.

    python -m bench.screening                  ResNet-18 on this machine's CPU, 32×32 pixels
    python -m bench.screening --device cuda --images 20000

Every score of the screening is measured through the participant's own task, one site at a time; the images are noise.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer

from asterism.algorithms.anchor import model
from asterism.algorithms.screen import LocalScreen, Screening, screen
from asterism.data.images import Dataset, ImageSet
from asterism.experiment import load
from asterism.files import write_json
from asterism.runs.simulate import Simulation, simulate
from asterism.seeds import generator
from asterism.site import Site
from bench.record import described, results_file

CLASSES, KNOWN = 100, 80
FEATURES = 512
SCORES: tuple[str, ...] = get_args(Screening.model_fields["score"].annotation)


def federation(name: str, images: int, device: str) -> Simulation:
    """One site, whose unlabelled images are ``images`` and whose known ones four times as many."""
    count = images * CLASSES // (CLASSES - KNOWN)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator(0, "pixels"), dtype=torch.uint8)
    names = tuple(f"class {c}" for c in range(CLASSES))
    noise = ImageSet(pixels, torch.arange(count) % CLASSES, [str(i) for i in range(count)], names)
    settings = [f'model.name="{name}"', f'machine.device="{device}"', "split.participants=1", "federation.clients=1"]
    return simulate(load("cifar100", [*settings, 'split.partition="iid"']), dataset=Dataset("noise", noise, noise))


def seconds(site: Site, simulation: Simulation, score: str) -> float:
    """Seconds of one order to screen with one score."""
    settings = Screening.model_validate({"filter": True, "score": score, "threshold": 0.0 if score == "cosine" else -1})
    local = LocalScreen(screening=settings, seed=0, stage="novel-1", known=KNOWN, met=KNOWN)
    width = simulation.worker.layout.features
    means = {"means": torch.zeros(KNOWN, width), "precision": torch.eye(width)}
    began = time.perf_counter()
    screen(site, {**model(simulation.state), **means}, {"local": local.model_dump_json(), "threshold": 0.0})
    if simulation.worker.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main(
    images: Annotated[int, typer.Option(help="Unlabelled images of the site.")] = 512,
    name: Annotated[str, typer.Option(help="Backbone.")] = "resnet18",
    device: Annotated[str, typer.Option(help='"cpu" or "cuda".')] = "cpu",
    repeats: Annotated[int, typer.Option(help="Orders measured of each score.")] = 3,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Measures each score and prints one line for each."""
    found, simulation = described(), federation(name, images, device)
    site = simulation.fleet._sites[0](simulation.participants[0])
    seconds(site, simulation, SCORES[0])  # first kernels, first pages
    for score in SCORES:
        taken = statistics.median(seconds(site, simulation, score) for _ in range(repeats))
        looked = len(site.share("novel-1"))
        row = {
            "score": score, "backbone": name, "device": device, "images": looked, "seconds": round(taken, 3),
            "images_per_second": round(looked / taken, 1), "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 2),
        }  # fmt: skip
        found["runs"].append(row)
        print(json.dumps(row), flush=True)
    write_json(out or results_file("screening", device), found)


if __name__ == "__main__":
    typer.run(main)
