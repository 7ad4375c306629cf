"""A rehearsal in one process: digits, a saved split, and a resident participant for every site of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from asterism.data.sources import load as load_images
from asterism.data.split import save
from asterism.experiment import Experiment, load
from asterism.flow import Ask, Collect, Version
from asterism.runs.flower.fleet import Flower
from asterism.runs.flower.records import replied
from asterism.runs.simulate import Simulation, simulate
from asterism.runs.sites.contract import HELLO, Contract
from asterism.runs.sites.residence import Residence
from asterism.runs.sites.settings import SiteFile
from tests.flower.grid import LocalGrid

TINY = {
    "split.participants": 3,
    "federation.clients": 2,
    "known.rounds": 2,
    "novel.0.rounds": 1,
    "train.local_epochs": 1,
    "split.alpha": 1.0,
    "machine.device": "cpu",
}


def tiny(**more: Any) -> Experiment:
    return load("demo", {**TINY, **{key.replace("__", "."): value for key, value in more.items()}})


@dataclass
class Rehearsal:
    """Sites of a split on digits, each with a folder of its own, behind a grid."""

    folder: Path
    experiment: Experiment = field(default_factory=tiny)
    site_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.simulation: Simulation = simulate(self.experiment)
        train = load_images(self.experiment.data, seed=self.experiment.seed).dataset.train
        save(self.simulation.split, self.folder / "split.json", train)
        self.names = self.simulation.participants
        self.notes: list[dict[str, Any]] = []
        self.residents = {name: self.resident(name) for name in self.names}
        self.grid = LocalGrid({name: partial(self._handle, name) for name in self.names})

    def _handle(self, name: str, message: Any) -> Any:
        return replied(message, self.residents[name].answer)

    def settings(self, name: str, **more: Any) -> SiteFile:
        return SiteFile(
            name=name, server="127.0.0.1:1", images="digits", split="split.json", folder=f"sites/{name}", threads=1,
            device="cpu", base=self.folder, **{**self.site_settings, **more},
        )  # fmt: skip

    def resident(self, name: str, **more: Any) -> Residence:
        return Residence(self.settings(name, **more), self.note)

    def note(self, event: str, **facts: Any) -> None:
        self.notes.append({"event": event, **facts})

    @property
    def contract(self) -> Contract:
        known, *novel = [stage.classes for stage in self.simulation.split.stages]
        worker = self.simulation.worker
        return Contract(
            run="rehearsal", classes=known, novel=tuple(novel), shape=(1, 8, 8), model=self.experiment.model,
            rows=worker.layout.rows, seed=self.experiment.seed, layout=self.simulation.state.layout,
        )  # fmt: skip

    def fleet(self, **more: Any) -> Flower:
        return Flower(self.grid, "rehearsal", **{"sleep": lambda seconds: None, **more})

    def hello(self, name: str, contract: Contract | None = None) -> Ask:
        options = {"name": name, "contract": (contract or self.contract).model_dump_json()}
        return Collect((name,), HELLO, {}, Version(HELLO, 0, ""), options)

    def greeted(self, **more: Any) -> Flower:
        """A fleet whose sites have all agreed to the contract."""
        fleet = self.fleet(**more)
        for name in self.names:
            assert not fleet.answer(self.hello(name)).failures
        return fleet


Answering = Callable[[Ask], Any]
