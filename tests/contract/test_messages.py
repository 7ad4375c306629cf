"""Every stage of learning runs alike in one process and between sites that share nothing but messages of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor

from asterism.aggregate import answered
from asterism.algorithms import TASKS
from asterism.algorithms.discover import Discovery
from asterism.algorithms.screen import Screening
from asterism.data.images import ImageSet
from asterism.federated import FEDERATED, Federation
from asterism.flow import Answer, Ask, Options, Reply, State, Tensors, Version, run
from asterism.model import Architecture
from asterism.site import Share, Site, Task, perform
from asterism.worker import Worker
from tests.contract.test_novel import METHODS, Stage
from tests.synthetic import Tiny, copied, same_bits


def to_bytes(header: Mapping[str, Any], tensors: Tensors) -> bytes:
    """A line of JSON and the tensors behind it."""
    copies = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    return json.dumps(header).encode() + b"\n" + safetensors.torch.save(copies)


def from_bytes(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``to_bytes`` was given."""
    header, _, tensors = message.partition(b"\n")
    return json.loads(header), safetensors.torch.load(tensors)


def order(ask: Ask, participant: str) -> bytes:
    """An ask as one participant is sent it."""
    header = {
        "participant": participant, "kind": type(ask).__name__, "task": ask.task,
        "version": vars(ask.version), "options": dict(ask.options),
    }  # fmt: skip
    return to_bytes(header, ask.tensors)


@dataclass
class Apart:
    """A participant with images, a store and a worker of its own, which reads and writes bytes."""

    name: str
    worker: Worker
    images: ImageSet
    shares: Mapping[str, Tensor]  # rows by stage
    store: dict[str, bytes] = field(default_factory=dict)

    def answer(self, message: bytes) -> bytes:
        """The reply to an order; what the task leaves in the store is read from bytes the next time, too."""
        header, tensors = from_bytes(message)
        assert header["participant"] == self.name
        store: dict[str, Tensors] = {key: from_bytes(entry)[1] for key, entry in self.store.items()}
        site = Site(self.name, self.share, store, self.worker)
        ask = Ask((self.name,), header["task"], tensors, Version(**header["version"]), header["options"])
        before = copied(tensors)
        reply = perform(site, ask, TASKS)
        assert same_bits(tensors, before), "a task changed what it was sent"
        self.store = {key: to_bytes({}, entry) for key, entry in store.items()}
        version = None if reply.version is None else vars(reply.version)
        return to_bytes({"weight": reply.weight, "metrics": dict(reply.metrics), "version": version}, reply.tensors)

    def share(self, stage: str) -> Share:
        """The participant's images of a stage."""
        return Share(self.images, self.images.labels, self.shares[stage])


@dataclass
class Messages:
    """A fleet whose participants share nothing; with ``restarts``, each order meets a process that has just begun."""

    tiny: Tiny
    images: ImageSet
    shares: Mapping[str, Mapping[str, Tensor]]  # by participant and stage
    restarts: bool = False
    sites: dict[str, Apart] = field(default_factory=dict)

    def answer(self, ask: Ask) -> Answer:
        """What the participants answer, each asked and answering in bytes."""
        return answered(ask, [(name, self.reply(ask, name)) for name in ask.participants])

    def reply(self, ask: Ask, name: str) -> Reply:
        """One participant's reply."""
        site = self.site(name)
        header, tensors = from_bytes(site.answer(order(ask, name)))
        return Reply(tensors, header["weight"], header["metrics"], Version(**header["version"]))

    def site(self, name: str) -> Apart:
        """The participant, made when it is first asked."""
        before = self.sites.get(name)
        if before is None or self.restarts:
            pixels, labels = self.images.pixels.clone(), self.images.labels.clone()
            images = ImageSet(pixels, labels, list(self.images.ids), self.images.classes)
            rows = self.tiny.known.rows(len(self.tiny.images.classes))
            worker = Worker.of(Architecture(name=self.tiny.backbone), images.shape, rows, seed=99)
            store = {} if before is None else before.store
            self.sites[name] = Apart(name, worker, images, self.shares[name], store)
        return self.sites[name]


def between_sites(stage: Stage, *, restarts: bool = False) -> State:
    """The state that a novel stage ends with when its participants share nothing."""
    shares = {name: {"novel-1": rows, "known": stage.labelled[name]} for name, rows in stage.novel.items()}
    fleet = Messages(stage.tiny, stage.images, shares, restarts)
    stage.answer = fleet.answer  # type: ignore[method-assign]
    end = stage.run()
    assert len(fleet.sites) == len(stage.novel)
    return end


@pytest.mark.parametrize("federated", FEDERATED)
def test_known_class_learning_is_the_same_between_sites(federated: str) -> None:
    tiny = Tiny(federation=Federation.model_validate({"algorithm": {"name": federated}, "clients": 2}))
    shares = {name: {"known": rows} for name, rows in tiny.shares.items()}
    fleet = Messages(tiny, tiny.images, shares, restarts=True)
    assert same_bits(run(tiny.flow(tiny.start), fleet.answer, lambda state: None).tensors, tiny.run().tensors)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarting"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_between_sites(method: str, restarts: bool) -> None:
    here, apart = Stage(method), Stage(method)
    for stage in (here, apart):
        stage.discovery = Discovery(clusters=4, classes=2, initial="prototypes", lloyd_rounds=1)
    assert same_bits(between_sites(apart, restarts=restarts).tensors, here.run().tensors)


@pytest.mark.parametrize("federated", [name for name in FEDERATED if name != "fedavg"])
@pytest.mark.parametrize("method", ["gal", "orchestra"])
def test_every_fl_algorithm_is_the_same_between_sites(method: str, federated: str) -> None:
    end = between_sites(Stage(method, federated), restarts=True)
    assert same_bits(end.tensors, Stage(method, federated).run().tensors)


def test_a_class_that_one_site_never_meets_and_a_site_without_images_change_nothing_of_that() -> None:
    here, apart = Stage("autonovel"), Stage("autonovel")
    for stage in (here, apart):
        rows = torch.cat(list(stage.novel.values()))
        stage.novel = {"site-0": rows[:-1], "site-1": rows[:0], "site-2": rows[-1:]}
    assert same_bits(between_sites(apart).tensors, here.run().tensors)


def test_screening_is_the_same_between_sites() -> None:
    here, apart = Stage("gal"), Stage("gal")
    for stage in (here, apart):
        stage.screening = Screening(filter=True, false_alarm=0.3, capacity=6, eviction="random")
    assert same_bits(between_sites(apart).tensors, here.run().tensors)
    assert any("screen" in ask.task for ask in here.asks)


def test_a_message_holds_every_bit_of_what_was_written() -> None:
    tensors = {"a": torch.tensor([0.1, -0.0, 3e-45]), "b": torch.empty(0, 3), "c": torch.arange(6).view(2, 3).T}
    header = {"x": 0.1, "y": "ä\n", "z": True, "n": 2**53 + 1}
    assert from_bytes(to_bytes(header, tensors))[0] == header
    assert same_bits(from_bytes(to_bytes(header, tensors))[1], tensors)


def test_a_task_that_leaves_something_with_the_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = TASKS["gal"]

    def leaking(site: Site, tensors: Tensors, options: Options) -> Reply:
        reply, earlier = trained(site, tensors, options), len(site.worker.programs)
        site.worker.programs["leak", earlier] = None
        return replace(reply, weight=1.0 + earlier)

    monkeypatch.setitem(cast(dict[str, Task], TASKS), "gal", leaking)
    assert not same_bits(between_sites(Stage("gal")).tensors, Stage("gal").run().tensors)
