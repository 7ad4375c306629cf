"""The images of a real site, and which of them belong to which stage.

An image keeps its place for good: what a site remembers of it are row numbers, and new images come behind the old
ones. Unlabelled images that no earlier stage took belong to the novel stage that looks for them next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.data.images import UNLABELLED, Dataset, ImageSet
from asterism.data.settings import Images
from asterism.data.sources import load
from asterism.data.split import KNOWN, load_split
from asterism.errors import AsterismError
from asterism.files import read_json, write_json
from asterism.runs.simulate import positions
from asterism.runs.sites.contract import Contract
from asterism.site import Share

TEST = "test:"  # the stage name by which evaluation asks for test images of the first so many classes


class LocalImages:
    """A site's own images: labelled ones for the known stage and for tests, the others by novel stage."""

    def __init__(self, settings: Images, contract: Contract, kept: Path) -> None:
        self._settings, self._contract, self._kept = settings, contract, kept
        self._stages: dict[str, list[str]] = {}
        self._order: dict[str, bool] = {}  # every image ever seen, and whether it is for tests
        if kept.exists():
            found = read_json(kept)
            self._stages, self._order = found["stages"], found["images"]
        self._read()

    def share(self, stage: str) -> Share:
        """The images of a stage; those of a novel stage as they were when it was last looked for."""
        return Share(self.images, self.targets, self._rows(stage))

    def waiting(self, stage: str) -> int:
        """How many images a novel stage would have now; from here on they are this stage's."""
        self._read()
        taken = {name for other, names in self._stages.items() if other != stage for name in names}
        free = [self.images.ids[i] for i in (self.images.labels == UNLABELLED).nonzero().flatten().tolist()]
        self._stages[stage] = [name for name in free if name not in taken]
        self._keep()
        return len(self._stages[stage])

    def _rows(self, stage: str) -> Tensor:
        if stage.startswith(TEST):
            met = int(stage.removeprefix(TEST))
            return (self._tested & (self.targets >= 0) & (self.targets < met)).nonzero().flatten()
        if stage == KNOWN:
            known = (self.targets >= 0) & (self.targets < len(self._contract.classes))
            return (known & ~self._tested).nonzero().flatten()
        if stage not in self._stages:
            self.waiting(stage)
        return torch.tensor([self._places[name] for name in self._stages[stage]], dtype=torch.int64)

    def _read(self) -> None:
        """Reads every image, old ones in the places they had, new ones behind them."""
        dataset = load(self._settings, seed=self._contract.seed).dataset
        self._contract.require_names(_used(dataset), self._settings.images)
        self._contract.require_shape(dataset.train.shape, self._settings.images)
        both = joined(dataset)
        for place, name in enumerate(both.ids):
            self._order.setdefault(name, place >= len(dataset.train))
        found = {name: place for place, name in enumerate(both.ids)}
        lost = next((name for name in self._order if name not in found), None)
        if lost is not None:
            raise AsterismError(
                "an image that earlier stages learned from is gone", where=lost, fix="put it back, or begin a new site"
            )
        self.images = both.take(torch.tensor([found[name] for name in self._order]))
        self.targets = positions(self.images, self._contract.every_class)
        self._tested = torch.tensor(list(self._order.values()), dtype=torch.bool)
        self._places = {name: place for place, name in enumerate(self._order)}
        self._keep()

    def _keep(self) -> None:
        write_json(self._kept, {"format": 1, "images": self._order, "stages": self._stages})


class SplitImages:
    """A rehearsing site's images: what a saved split gives to its name, and its part of the common test images."""

    def __init__(self, settings: Images, contract: Contract, split: Path, name: str) -> None:
        dataset = load(settings, seed=contract.seed).dataset
        contract.require_shape(dataset.train.shape, settings.images)
        found = load_split(split, dataset.train)
        if name not in found.participants:
            raise AsterismError(f"the split knows no participant {name!r}", where=str(split))
        contract.require_names(found.stages[0].classes, str(split))
        self._shares = {stage.name: stage.shares[name] for stage in found.stages}
        self.images = joined(dataset)
        self.targets = positions(self.images, contract.every_class)
        tests = torch.arange(len(dataset.train), len(self.images))
        self._tests = tests[found.participants.index(name) :: len(found.participants)]

    def share(self, stage: str) -> Share:
        """The images of a stage."""
        if stage.startswith(TEST):
            targets = self.targets[self._tests]
            rows = self._tests[(targets >= 0) & (targets < int(stage.removeprefix(TEST)))]
        else:
            rows = self._shares.get(stage, torch.empty(0, dtype=torch.int64))
        return Share(self.images, self.targets, rows)

    def waiting(self, stage: str) -> int:
        """How many images the split gives to this site in a stage."""
        return len(self.share(stage))


def joined(dataset: Dataset) -> ImageSet:
    """The train images, then the test images."""
    train, test = dataset.train, dataset.test
    trained = set(train.ids)
    return ImageSet(
        torch.cat([train.pixels, test.pixels]), torch.cat([train.labels, test.labels]),
        [*train.ids, *(f"test/{name}" if name in trained else name for name in test.ids)], train.classes,
    )  # fmt: skip


def _used(dataset: Dataset) -> list[Any]:
    """Names of the classes that have an image."""
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    return [dataset.train.classes[i] for i in sorted(set(labels[labels >= 0].tolist()))]
