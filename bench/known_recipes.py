"""Known class learning under every FL algorithm and recipe, on one split, seed by seed: what each reaches, how fast.

    python -m bench.known_recipes demo --seeds 2023 --seeds 2024 --seeds 2025 --out results/known-digits-cpu.json
    python -m bench.known_recipes cifar100 --set data.images=FOLDER --out results/known-cifar100-h200.json

The output names the command, the commit, the machine and the seeds. A recipe that is done is not run again, so a
measurement that was cut goes on where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from asterism.experiment import load
from asterism.files import write_json
from asterism.runs.execute import execute, new_folder
from asterism.runs.progress import Plain
from bench.record import described

RECIPES: dict[str, list[str]] = {
    "plain": [],
    "rotations": ["known.rotations=true", "known.eta=0", "train.lr=0.1"],
    "ce-only": ["known.eta=0"],
    "fedprox": ["federation.algorithm.name=fedprox"],
    "scaffold": ["federation.algorithm.name=scaffold"],
    "moon": ["federation.algorithm.name=moon"],
}


def main(
    config: str,
    out: Annotated[Path, typer.Option(help="JSON file of the results; gone on with if it exists.")],
    seeds: Annotated[list[int] | None, typer.Option(help="Seeds; 2023 where none is given.")] = None,
    recipes: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(RECIPES),
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Further settings of every run.")] = None,
    work: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs/bench"),
) -> None:
    """Runs every recipe for every seed."""
    found = json.loads(out.read_text()) if out.exists() else described()
    for seed in seeds or [2023]:
        for name in recipes.split(","):
            if any((run["recipe"], run["seed"]) == (name, seed) for run in found["runs"]):
                continue
            settings = [*(overrides or []), *RECIPES[name], f"seed={seed}", f"name={config}-{name}"]
            folder = work / out.stem / f"{name}-{seed}"
            if not (folder / "config.toml").exists():
                new_folder(load(config, settings), folder)
            (stage,) = execute(folder, Plain())["stages"]
            rate = stage["images"] / stage["seconds"]
            found["runs"].append(
                {"recipe": name, "seed": seed, "settings": RECIPES[name], **stage, "images_per_second": round(rate, 1)}
            )
            write_json(out, found)
    for run in found["runs"]:
        print(f"{run['recipe']:10} seed {run['seed']}  known {run['headwise']['known']:.1f}  {run['seconds']:.0f} s")


if __name__ == "__main__":
    typer.run(main)
