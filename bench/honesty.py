"""Whether the fast path of a GPU says what the exact one says: losses step by step, and accuracy after rounds.

    python -m bench.honesty --set data.images=FOLDER        on a GPU
    python -m bench.honesty --set data.images=FOLDER --only own --set train.local_epochs=2      in about a minute there
    python -m bench.honesty --config demo --device cpu      bfloat16 against float32 on a CPU, to try it

Both paths train the same network on the same batches, with the same draws of augmentation. Fails where a loss of the
first fifty steps differs by more than ``CURVE`` of the first one, or an accuracy after five rounds by more than one
point (or by twice its standard error, where there are few test images). Losses are means of ten steps: a single one
swings with rounding wherever its batch is hard.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer

from asterism.algorithms.known import Known, known_step
from asterism.algorithms.local import Local
from asterism.data.images import Dataset
from asterism.data.sources import load as load_images
from asterism.experiment import Experiment, load
from asterism.files import write_json
from asterism.flow import State, run
from asterism.model import Speed
from asterism.runs import simulate
from asterism.runs.simulate import Simulation
from asterism.seeds import generator
from asterism.site import Site
from asterism.training import Batch, Step, fit
from bench.record import described, results_file
from bench.throughput import PATHS

STEPS, MEAN_OF = 50, 10
CURVE = 0.03  # of the first loss
POINTS = 1.0  # of accuracy, in percent
ON_CPU = {"exact": Speed(), "half": Speed(half=True, reading=True)}


def federation(config: str, path: str, settings: list[str], dataset: Dataset, device: str) -> Simulation:
    """The federation of one path."""
    experiment = load(config, [*settings, f'machine.device="{device}"', *(PATHS[path] if device == "cuda" else [])])
    if device == "cuda":
        return simulate.simulate(experiment, dataset=dataset)
    with patch.object(simulate, "speed", lambda *_: ON_CPU[path]):  # no setting makes a CPU round
        return simulate.simulate(experiment, dataset=dataset)


def losses(federated: Simulation) -> list[float]:
    """The loss of each of the first fifty steps of one participant that holds every known image."""
    e, worker = federated.experiment, federated.worker
    site, local = _site(federated), _local(e)
    worker.load(federated.state.tensors)
    made = torch.zeros(STEPS, device=worker.device)
    place = torch.zeros((), dtype=torch.int64, device=worker.device)

    def noting(step: Step) -> Callable[[torch.Tensor, torch.Tensor], Batch]:
        def noted(pixels: torch.Tensor, labels: torch.Tensor) -> Batch:
            batch = step(pixels, labels)
            # A graph that is replayed repeats this too, so the place must be a tensor.
            made.index_put_((place.clamp(max=STEPS - 1),), batch.loss.detach())
            place.add_(1)
            return batch

        return noted

    share = site.share("known")
    train = e.train.model_copy(update={"local_epochs": -(-STEPS * e.train.batch // len(share)) + 1})
    rng = generator(e.seed, "honesty")
    fit(worker, share, lambda: noting(known_step(site, local, e.known)), train, lr=e.train.lr, rng=rng, program="noted")
    return made.tolist()


def _site(federated: Simulation) -> Site:
    """A site that holds all training images of known classes."""
    site = federated.fleet._sites[0](federated.participants[0])
    known = federated.split.stages[0].shares
    every = torch.cat([rows for rows in known.values()])[: STEPS * federated.experiment.train.batch]
    part = site.share("known")

    def share(stage: str) -> Any:
        return type(part)(part.images, part.targets, every.to(part.indices.device))

    return Site("everyone", share, {}, site.worker)


def _local(e: Experiment) -> Local:
    return Local(
        train=e.train,
        federation=e.federation,
        augment=e.data.augment,
        seed=e.seed,
        stage="known",
        round=0,
        rounds=e.known.rounds,
        lr=e.train.lr,
    )


def accuracy(federated: Simulation, rounds: int) -> float:
    """Accuracy over the known classes after some rounds, in percent."""
    federated.worker.network.train()
    states: list[State] = []
    experiment = federated.experiment.model_copy(
        update={"known": Known(**{**federated.experiment.known.model_dump(), "rounds": rounds})}
    )
    flow = Simulation(**{**vars(federated), "experiment": experiment}).flow(federated.state)
    state = run(flow, federated.fleet.answer, states.append)
    measured: Any = federated.measure(state)
    return float(measured["headwise"]["known"])


def deviation(percent: float, federated: Simulation) -> float:
    """The standard error of such an accuracy over the test images of known classes, in percent."""
    test, known = federated.test, len(federated.split.stages[0].classes)
    images = int((test.targets[test.indices] < known).sum())
    return float((percent * (100 - percent) / images) ** 0.5)


def smooth(values: list[float]) -> torch.Tensor:
    """Means of ten steps."""
    return torch.tensor(values[: STEPS // MEAN_OF * MEAN_OF]).view(-1, MEAN_OF).mean(dim=1)


def main(
    config: Annotated[str, typer.Option(help="Configuration; its data must be there.")] = "cifar100",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Further settings.")] = None,
    device: Annotated[str, typer.Option(help='"cuda" or "cpu".')] = "cuda",
    rounds: Annotated[int, typer.Option(help="Rounds before the accuracy is compared.")] = 5,
    only: Annotated[str, typer.Option(help='Paths beside "exact", separated by commas; all without.')] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Compares every fast path with the exact one."""
    found, settings = described(), overrides or []
    e = load(config, settings)
    dataset = load_images(e.data, seed=e.seed).dataset
    exact: dict[str, Any] = {}
    every = PATHS if device == "cuda" else ON_CPU
    for path in [path for path in every if path == "exact" or not only or path in only.split(",")]:
        federated = federation(config, path, settings, dataset, device)
        row: dict[str, Any] = {"path": path, "losses": [round(x, 5) for x in losses(federated)]}
        row["accuracy_percent"] = accuracy(federated, rounds)
        exact = exact or row
        row["largest_difference_of_mean_loss"] = _difference(row, exact)
        row["points"] = round(row["accuracy_percent"] - exact["accuracy_percent"], 2)
        allowed = max(POINTS, 2 * deviation(exact["accuracy_percent"], federated))
        row["points_allowed"] = round(allowed, 2)
        row["honest"] = row["largest_difference_of_mean_loss"] <= CURVE and abs(row["points"]) <= allowed
        found["runs"].append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "losses"}), flush=True)
        write_json(out or results_file("honesty", device), found)
    if not all(row["honest"] for row in found["runs"]):
        raise SystemExit("a fast path does not say what the exact one says")


def _difference(row: dict[str, Any], exact: dict[str, Any]) -> float:
    apart = (smooth(row["losses"]) - smooth(exact["losses"])).abs().max()
    return round(float(apart / exact["losses"][0]), 4)


if __name__ == "__main__":
    typer.run(main)
