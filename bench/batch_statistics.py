"""GAL with batch statistics and with those of m^L: which local training stays finite, and what the stage comes to.

    python -m bench.batch_statistics --out results/bench/batch-statistics-digits-cpu.json

ResNet-18 on scikit-learn's digits, from one m^L; minutes on a CPU (docs/decisions/006).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from asterism.experiment import load
from asterism.files import write_json
from asterism.flow import Answer, Ask, State, run
from asterism.runs.simulate import Simulation, simulate
from bench.record import described

SETTINGS = [
    "model.name=resnet18",
    "train.batch=64",
    "train.local_epochs=2",
    "known.rounds=12",
    "novel.0.rounds=4",
    "novel.0.discovery.classes=3",
]
OF_KNOWN = "novel.0.algorithm.batch_statistics=false"
VARIANTS = {
    "batch statistics": [],
    "statistics of m^L": [OF_KNOWN],
    "statistics of m^L, clip 1": [OF_KNOWN, "train.clip=1.0"],
    "statistics of m^L, lr 0.005": [OF_KNOWN, "train.lr=0.005"],
    "batch statistics, lr 0.005": ["train.lr=0.005"],
}


def main(
    out: Annotated[Path, typer.Option(help="JSON file of the results.")],
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 2023,
) -> None:
    """Trains m^L once and each variant from it."""
    found, settings = described(), [*SETTINGS, f"seed={seed}"]
    known = simulate(load("demo", settings))
    state = run(known.flow(known.state), known.fleet.answer, lambda kept: None)
    found["known"] = known.measure(state)["headwise"]
    for name, changes in VARIANTS.items():
        row = {
            "variant": name,
            "settings": changes,
            "seed": seed,
            **stage(simulate(load("demo", settings + changes)), state),
        }
        found["runs"].append(row)
        print(
            f"{name:28} known {row['known'][-1]}  novel {row['novel'][-1]}  failed replies {row['failed']}", flush=True
        )
        write_json(out, found)


def stage(simulation: Simulation, state: State) -> dict[str, Any]:
    """Headwise accuracies before each round of a novel stage and after it, and how many replies were unusable."""
    measured, failed = list[Any](), 0

    def answer(ask: Ask) -> Answer:
        nonlocal failed
        answered = simulation.fleet.answer(ask)
        failed += len(answered.failures)
        return answered

    begun = replace(state, stage="novel-1", round=0)
    run(simulation.flow(begun), answer, lambda kept: measured.append(simulation.measure(kept)["headwise"]))
    return {part: [round(scores[part], 1) for scores in measured] for part in ("known", "novel")} | {"failed": failed}


if __name__ == "__main__":
    typer.run(main)
