"""A federation on one machine: images, split, network and fleet of an experiment, ready to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.algorithms import ALGORITHMS, TASKS
from asterism.algorithms.known import known_stage
from asterism.algorithms.local import Setup
from asterism.algorithms.stage import Plan
from asterism.data.images import Dataset, ImageSet
from asterism.data.sources import load as load_images
from asterism.data.split import FederationSplit, StageSplit, make_split
from asterism.errors import AsterismError
from asterism.evaluation import Tables, by_stage, measure, scores
from asterism.experiment import Experiment
from asterism.flow import Flow, Options, Reply, State, Tensors
from asterism.runs.inprocess import InProcess
from asterism.runs.machine import prepared, speed
from asterism.runs.store import Stores
from asterism.site import Share, Site, Task
from asterism.worker import Worker


@dataclass(frozen=True)
class Simulation:
    """Everything a flow needs to run in this process."""

    experiment: Experiment
    split: FederationSplit
    worker: Worker
    fleet: InProcess
    test: Share  # every test image of the federation's classes
    state: State  # before the first round

    @property
    def participants(self) -> tuple[str, ...]:
        """Names of all participants."""
        return self.split.participants

    @property
    def stages(self) -> tuple[StageSplit, ...]:
        """The stages that the experiment runs: the known one and those novel ones that it describes."""
        return self.split.stages[: 1 + len(self.experiment.novel)]

    def flow(self, state: State) -> Flow:
        """The flow of the stage that ``state`` is in, with the experiment's settings."""
        number = [stage.name for stage in self.stages].index(state.stage)
        absent = self.experiment.novel[number - 1].absent if number else self.experiment.known.absent
        met = len(self.classes_met(self.stages[number - 1].name)) if number else None
        return stage_flow(self.experiment, state, number, self._active(absent), self.setup, met)

    def rounds(self, stage: str) -> int:
        """How many rounds a stage has."""
        number = [s.name for s in self.stages].index(stage)
        return self.experiment.novel[number - 1].rounds if number else self.experiment.known.rounds

    def _active(self, absent: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.participants if name not in absent)

    @property
    def setup(self) -> Setup:
        """What the experiment sets for all stages."""
        e = self.experiment
        return Setup(e.federation, e.train, e.data.augment, e.seed, self.worker.layout)

    def classes_met(self, stage: str) -> tuple[str, ...]:
        """Names of the true classes that a stage and those before it brought."""
        stages = self.split.stages
        met = stages[: [s.name for s in stages].index(stage) + 1]
        return tuple(name for s in met for name in s.classes)

    def tables(self, state: State) -> Tables:
        """Count tables of a state on the test images of every class met up to its stage."""
        known, classes = len(self.split.stages[0].classes), len(self.classes_met(state.stage))
        calibration = self.experiment.evaluation.calibration
        return measure(state, self.worker, _of_classes(self.test, classes), known, classes, calibration)

    def measure(self, state: State) -> dict[str, object]:
        """Accuracies of a state under both protocols, in percent."""
        return scores(self.tables(state))

    def by_stage(self, state: State) -> list[float | None]:
        """Headwise accuracy on the classes of each stage up to the state's."""
        number = [stage.name for stage in self.stages].index(state.stage)
        return by_stage(self.tables(state), [len(stage.classes) for stage in self.stages[: number + 1]])


def stage_flow(
    experiment: Experiment, state: State, number: int, everyone: Sequence[str], setup: Setup, met: int | None
) -> Flow:
    """The flow of a stage, 0 being the known one, with an experiment's settings; ``met``: true classes before it."""
    if number == 0:
        return known_stage(state, everyone, experiment.known, setup)
    novel = experiment.novel[number - 1]
    plan = Plan(novel.rounds, novel.discovery, novel.screening, met)
    return ALGORITHMS[novel.algorithm.name].flow(state, everyone, novel.algorithm, setup, plan)


def simulate(
    experiment: Experiment,
    *,
    dataset: Dataset | None = None,
    split: FederationSplit | None = None,
    stores: Stores | None = None,
) -> Simulation:
    """The simulated federation of an experiment; images and split may be given instead of loaded and drawn."""
    devices = prepared(experiment)
    dataset = dataset or load_images(experiment.data, seed=experiment.seed).dataset
    split = split or make_split(dataset.train, experiment.split, experiment.seed)
    _require_clients(experiment, split.participants)
    classes = [name for stage in split.stages for name in stage.classes]
    known = split.stages[0].classes
    rows, shape = experiment.known.rows(len(known)), dataset.train.shape
    fast = speed(experiment, split, devices[0], math.prod(shape[1:]))
    workers = [
        Worker.of(experiment.model, shape, rows, experiment.seed, str(device), fast, lane)
        for lane, device in enumerate(devices)
    ]
    stores = stores or Stores()
    shares = {stage.name: stage.shares for stage in split.stages}
    images = {device: dataset.train.to(device) for device in devices}
    targets = {device: positions(train, classes) for device, train in images.items()}

    def sites_of(worker: Worker) -> Callable[[str], Site]:
        def site(name: str) -> Site:
            def share(stage: str) -> Share:
                device = worker.device
                return Share(images[device], targets[device], shares[stage][name].to(device))

            return Site(name, share, stores.of(name), worker)

        return site

    tasks = TASKS if len(workers) == 1 else {name: _in_a_turn(task) for name, task in TASKS.items()}
    sites = [sites_of(worker) for worker in workers]
    fleet = InProcess(sites, split.participants, tasks, deadline=experiment.federation.deadline)
    state = State("known", 0, workers[0].take(), workers[0].layout.id, known)
    test = _test_share(dataset.test.to(devices[0]), classes)
    return Simulation(experiment, split, workers[0], fleet, test, state)


def _in_a_turn(task: Task) -> Task:
    """The task on the stream of the worker that it is given."""

    def work(site: Site, tensors: Tensors, options: Options) -> Reply:
        with site.worker.turn():
            return task(site, tensors, options)

    return work


def positions(images: ImageSet, classes: Sequence[str]) -> Tensor:
    """The position of each image's class in ``classes``; −1 for classes that are not in it and for no label."""
    place = {name: i for i, name in enumerate(classes)}
    table = torch.tensor([*(place.get(name, -1) for name in images.classes), -1], device=images.labels.device)
    return table[images.labels]  # a label of −1 reads the last entry


def _test_share(test: ImageSet, classes: Sequence[str]) -> Share:
    targets = positions(test, classes)
    return Share(test, targets, (targets >= 0).nonzero().flatten())


def _of_classes(share: Share, classes: int) -> Share:
    """The images of the first ``classes`` classes of a share."""
    return Share(share.images, share.targets, share.indices[share.targets[share.indices] < classes])


def _require_clients(experiment: Experiment, participants: Sequence[str]) -> None:
    for where, absent in (
        ("known", experiment.known.absent),
        *((f"novel.{i}", novel.absent) for i, novel in enumerate(experiment.novel)),
    ):
        for stranger in set(absent) - set(participants):
            raise AsterismError(
                f"{stranger!r} is no participant", where=f"{where}.absent", fix=f"one of {', '.join(participants)}"
            )
        active = len(participants) - len(set(absent))
        if experiment.federation.clients > active:
            raise AsterismError(
                f"{experiment.federation.clients} clients a round, but only {active} participants",
                where="federation.clients",
                fix=f"--set federation.clients={active}",
            )
