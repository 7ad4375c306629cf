"""Pools of prototypes as participants send them, for several numbers of novel classes, with all that estimators read.

    python -m bench.pools cifar100 --seeds 2023,2024,2025 --out pools/cifar100
    python -m bench.pools runs/my-run --novel 5,10,15,20 --out pools/my-run
    python -m bench.pools demo --novel 1,2,3 --out pools/demo

The paper varies the number of novel classes of CIFAR-100 from 5 to 30 and does not say which classes are known
meanwhile. Its estimates for 10 and 20 classes are those of its two-stage table (70 known classes) for all methods, so
the known classes are taken to be the same throughout: those that the largest number leaves. One model then serves all
numbers. With ``--separate`` each number has a model of its own that knows all other classes, as in the main tables. A
run folder gives the model that its known stage ended with; its novel classes have to be enough.

A pool is an ``.npz`` file of ``features`` (the prototypes), ``participants``, ``sizes``, ``known`` (the head's rows),
``means`` (true means of the known classes, which no server has), ``true`` and ``seed``, so ``asterism estimate FILE
--prototypes`` reads it. Pools that are there already are not made again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from asterism.algorithms.anchor import model
from asterism.algorithms.discover import discover, pooled
from asterism.algorithms.represent import represented
from asterism.data.images import Dataset
from asterism.data.sources import load as load_images
from asterism.errors import AsterismError
from asterism.experiment import Experiment, Novel, load
from asterism.files import replacing
from asterism.flow import Answers, State, run
from asterism.runs.simulate import Simulation, positions, simulate
from asterism.runs.store import read_checkpoint
from asterism.site import Share


def main(
    source: Annotated[str, typer.Argument(help="A configuration, or a run folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the pools.")],
    novel: Annotated[str, typer.Option(help="Numbers of novel classes, separated by commas.")] = "5,10,15,20,25,30",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; none: that of the configuration.")] = "",
    separate: Annotated[
        bool, typer.Option("--separate", help="A model for each number; all others are known.")
    ] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Further settings.")] = None,
) -> None:
    """Writes one pool for each seed and number."""
    numbers = sorted(map(int, novel.split(",")))
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(source) if (Path(source) / "config.toml").exists() else None
    for seed in seeds.split(",") if seeds else [""]:
        settings = [*(overrides or []), *([f"seed={seed}"] if seed else [])]
        experiment = load(folder / "config.toml" if folder else source, settings)
        wanted = {n: out / f"seed{experiment.seed}-novel{n:02}.npz" for n in numbers}
        missing = [n for n, file in wanted.items() if not file.exists()]
        groups = [[n] for n in missing] if separate else [missing] if missing else []
        for group in groups:
            dataset = load_images(experiment.data, seed=experiment.seed).dataset
            most = group[-1] if separate else numbers[-1]
            known = experiment.split.known if folder else len(dataset.train.classes) - most
            state = ended(folder) if folder else trained(having(experiment, known, most), dataset)
            for n in group:
                write(wanted[n], having(experiment, known, n), dataset, state)
                print(f"{wanted[n]}: {n} novel classes beside {known} known ones", flush=True)


def having(experiment: Experiment, known: int, novel: int) -> Experiment:
    """The experiment with other numbers of classes, and one novel stage."""
    split = experiment.split.model_copy(update={"known": known, "novel": (novel,)})
    stages = experiment.novel[:1] or (Novel(),)
    return experiment.model_copy(update={"split": split, "novel": stages})


def ended(folder: Path) -> State:
    """The state that a run's known stage ended with."""
    kept = sorted((folder / "states").glob("known-*.safetensors"))
    if not kept:
        raise AsterismError("the run keeps no state of its known stage", where=str(folder))
    return read_checkpoint(kept[-1]).state


def trained(experiment: Experiment, dataset: Dataset) -> State:
    """The state at the end of the known stage."""
    simulation = simulate(experiment, dataset=dataset)
    return run(simulation.flow(simulation.state), simulation.fleet.answer, lambda state: None)


def write(file: Path, experiment: Experiment, dataset: Dataset, known: State) -> None:
    """``file`` holds the pool of the novel stage that follows the known one."""
    simulation = simulate(experiment, dataset=dataset)
    if known.classes != simulation.split.stages[0].classes:
        raise AsterismError(
            f"the model knows {len(known.classes)} classes, others than the split's", where="split.known"
        )
    state = State("novel-1", 0, known.tensors, known.layout, known.classes)
    setup, discovery = simulation.setup, experiment.novel[0].discovery
    answers = simulation.fleet.answer(next(discover(state, simulation.participants, discovery, setup)))
    assert isinstance(answers, Answers)
    pool, sizes = pooled(answers)
    sent = [name for name, reply in answers.replies.items() if reply.weight > 0]
    counts = [len(answers.replies[name].tensors["centres"]) for name in sent]
    rows = setup.layout.with_rows(len(state.classes)).head(state.tensors["parameters"]).cpu().numpy()
    with replacing(file) as part, part.open("wb") as stream:
        np.savez(
            stream, features=pool, sizes=sizes, participants=np.repeat(sent, counts), known=rows,
            means=means(simulation, dataset, state), true=experiment.split.novel[0], seed=experiment.seed,
        )  # fmt: skip


def means(simulation: Simulation, dataset: Dataset, state: State) -> np.ndarray:
    """The mean representation (C^L, d) of each known class over all participants' training images."""
    worker, stage = simulation.worker, simulation.split.stages[0]
    worker.load(model(state))
    images = dataset.train.to(worker.device)
    indices = torch.cat(list(stage.shares.values())).to(worker.device)
    targets = positions(images, stage.classes)
    z, classes = represented(worker, Share(images, targets, indices)), targets[indices]
    sums = torch.zeros(len(stage.classes), z.shape[1], device=z.device).index_add_(0, classes, z)
    found: np.ndarray = (sums / classes.bincount(minlength=len(sums))[:, None]).cpu().numpy()
    return found


if __name__ == "__main__":
    typer.run(main)
