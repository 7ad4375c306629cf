"""What a suite will take: runs, images to train, minutes and device memory, told before anything starts.

Images follow from the settings: each round draws so many of the participants, and an average one holds its share.
Minutes follow from rates (images per second by dataset and method) of earlier results, of a short calibration, or of
one given number that is scaled to the network and the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from asterism.errors import AsterismError
from asterism.experiment import Experiment
from asterism.suite.identity import decisive_for_known, digest
from asterism.suite.known import is_trained, known_folder
from asterism.suite.plan import Place, Planned, Suite, planned, sentence
from asterism.suite.records import Found, Record

# Seconds an image against known class learning, where nothing was measured: those of results/main, seed 2023, on an
# H200; gal's from noise (decision 9), orchestra's without what its server's clustering took then.
RELATIVE = {
    "known": 1.0, "gal": 1.1, "autonovel": 1.9, "gm": 2.3, "incd": 2.3, "iic": 3.6, "opencon": 3.6,
    "orchestra": 2.4,
}  # fmt: skip
NETWORK = {"resnet18": 1.0, "resnet34": 2.1, "small": 0.01}  # arithmetic of an image, against ResNet-18
PIXELS = 32 * 32
OVERHEAD = 3.0  # seconds a run takes beside its rounds, where nothing was measured
UNTRAINED = frozenset({"kmeans"})  # methods whose stage trains on no image
Method = tuple[str, str]  # dataset and method


@dataclass(frozen=True)
class Rates:
    """How fast this machine is: images per second by dataset and method, and seconds that a run adds to them."""

    images: Mapping[Method, float] = field(default_factory=dict)
    overhead: Mapping[str, float] = field(default_factory=dict)
    given: float | None = None  # of known class learning with ResNet-18 at 32 pixels

    def seconds(self, experiment: Experiment, dataset: str, method: str, images: float) -> float:
        """The seconds that training so many images takes; those of a stage that trains on none lie in the overhead."""
        if not images:
            return 0.0
        if (dataset, method) in self.images:
            return images / self.images[dataset, method]
        known = self.images.get((dataset, "known"))
        if known is None:
            if self.given is None:
                raise AsterismError(
                    f"no measured rate for {dataset}, {method}", where="--plan",
                    fix="results of this machine, --rate IMAGES_PER_SECOND, or --calibrate",
                )  # fmt: skip
            known = self.given / weight(experiment)
        return images / known * RELATIVE.get(method, max(RELATIVE.values()))


def weight(experiment: Experiment) -> float:
    """How much more than an image of ResNet-18 at 32 pixels one of this experiment costs."""
    return NETWORK.get(experiment.model.name, 1.0) * (experiment.data.size or 32) ** 2 / PIXELS


def rates(records: Iterable[Record], given: float | None = None) -> Rates:
    """Rates that results of a machine show; where images were trained, and the middle one of several."""
    images: dict[Method, list[float]] = {}
    overhead: dict[str, list[float]] = {}
    for record in records:
        if record.failed:
            continue
        overhead.setdefault(record.dataset, []).append(record.overhead)
        for stage in record.stages:
            if stage.images and stage.seconds > 0:
                key = record.dataset, "known" if stage.name == "known" else str(method(record.settings, stage.name))
                images.setdefault(key, []).append(stage.images / stage.seconds)
    return Rates(
        {key: median(found) for key, found in images.items()},
        {key: median(found) for key, found in overhead.items()},
        given,
    )


def method(settings: Mapping[str, Any], stage: str) -> object:
    """The name of the algorithm of a novel stage."""
    return settings.get(f"novel.{int(stage.rpartition('-')[2]) - 1}.algorithm.name", "gal")


def images_per_stage(experiment: Experiment, per_class: float) -> list[float]:
    """Images that each stage trains on, counted as often as they are seen."""
    classes = [experiment.split.known, *experiment.split.novel]
    novel = [0 if stage.algorithm.name in UNTRAINED else stage.rounds for stage in experiment.novel]
    rounds = [experiment.known.rounds, *novel]
    share = min(1.0, experiment.federation.clients / experiment.split.participants)
    seen = share * experiment.train.local_epochs * per_class
    return [seen * count * n for count, n in zip(rounds, classes[: len(rounds)], strict=True)]


@dataclass(frozen=True)
class Cost:
    """What one run, or one known stage that several share, takes."""

    label: str
    images: float
    seconds: float
    memory: int  # bytes of the device, about
    shared: bool = False  # a known stage


@dataclass(frozen=True)
class Forecast:
    """What is left of a suite."""

    costs: tuple[Cost, ...]
    kept: int  # runs that have their results
    refused: Mapping[str, str]  # sentences by label, of runs whose settings are refused

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        runs = [vars(cost) for cost in self.costs]
        return {
            "runs": sum(not cost.shared for cost in self.costs), "known_stages": sum(c.shared for c in self.costs),
            "kept": self.kept, "images": round(sum(cost.images for cost in self.costs)),
            "minutes": round(self.minutes, 2), "memory": self.memory, "refused": dict(self.refused), "parts": runs,
        }  # fmt: skip

    @property
    def minutes(self) -> float:
        """Of all that is left."""
        return sum(cost.seconds for cost in self.costs) / 60

    @property
    def memory(self) -> int:
        """Bytes of the device that the largest run holds, about."""
        return max((cost.memory for cost in self.costs), default=0)


def forecast(
    suite: Suite, chosen: Sequence[Place], found: Found, work: Path, rates: Rates, overrides: Sequence[str] = ()
) -> Forecast:
    """What the chosen runs of a suite will take that have no results yet; a shared known stage counts once."""
    costs, refused, kept, known = list[Cost](), dict[str, str](), 0, set[str]()
    for place in chosen:
        try:
            plan = planned(suite, place, overrides)
        except AsterismError as error:
            refused[place.label] = sentence(error)
            continue
        record = found.of(plan)
        if record is not None and not record.failed:
            kept += 1
            continue
        origin = digest(decisive_for_known(plan))
        if origin not in known and not is_trained(known_folder(plan, work)):
            costs.append(_known_cost(suite, plan, rates))
        known.add(origin)
        costs.append(_novel_cost(suite, plan, rates))
    return Forecast(tuple(costs), kept, refused)


def _known_cost(suite: Suite, plan: Planned, rates: Rates) -> Cost:
    dataset = plan.place.dataset
    images = images_per_stage(plan.known, suite.dataset(dataset).images)[0]
    seconds = rates.seconds(plan.known, dataset, "known", images) + rates.overhead.get(dataset, OVERHEAD)
    return Cost(f"m^L of {plan.place.group} seed {plan.place.seed}", images, seconds, memory(suite, plan), True)


def _novel_cost(suite: Suite, plan: Planned, rates: Rates) -> Cost:
    dataset = plan.place.dataset
    images = images_per_stage(plan.experiment, suite.dataset(dataset).images)[1:]
    names = [novel.algorithm.name for novel in plan.experiment.novel]
    seconds = rates.overhead.get(dataset, OVERHEAD) + sum(
        rates.seconds(plan.experiment, dataset, name, count) for name, count in zip(names, images, strict=True)
    )
    return Cost(plan.place.label, sum(images), seconds, memory(suite, plan))


def memory(suite: Suite, plan: Planned) -> int:
    """About how many bytes a run holds on a GPU: the images, and for each worker its vectors and activations."""
    from asterism.suite.footprint import activations, parameters

    e = plan.experiment
    size = e.data.size or (32 if plan.place.dataset != "demo" else 8)
    classes = e.split.known + sum(e.split.novel)
    channels = len(e.model.mean)
    pixels = classes * suite.dataset(plan.place.dataset).images * 1.2 * channels * size**2  # test images too
    workers = min(e.machine.workers or 5, e.federation.clients)
    vectors = 6 * 4 * parameters(e.model, (channels, size, size), e.known.rows(e.split.known))
    # Halves, kept for the backward pass; two views where a method may have them.
    batch = 2 * e.train.batch * 2 * activations(e.model, (channels, size, size))
    return round(pixels + workers * (vectors + batch))
