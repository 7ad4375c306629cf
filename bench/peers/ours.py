"""Asterism: the stage of known classes as a simulation runs it, on noise, with augmentation off as for the peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from asterism.algorithms.anchor import MODEL
from asterism.data.images import Dataset, ImageSet
from asterism.experiment import load
from asterism.federated import FEDERATED
from asterism.flow import Options, Reply, State, Sum, Tensors
from asterism.runs import machine
from asterism.runs.inprocess import InProcess
from asterism.runs.simulate import Simulation, simulate
from asterism.site import Site
from bench.peers.work import CLASSES, LR, MOMENTUM, WEIGHT_DECAY, Net, Work, pixels, serve, told

FORGETFUL = "forgetful"  # told to a process that hands freed memory back, as it would by itself


def simulation(work: Work, settings: Sequence[str]) -> Simulation:
    """The federation whose participants hold the peers' images."""
    images, labels = (torch.cat(part) for part in zip(*(pixels(work, i) for i in range(work.clients)), strict=True))
    sites = tuple(f"site-{i // work.images}" for i in range(len(labels)))
    names = tuple(f"class {c}" for c in range(CLASSES))
    noise = ImageSet(images, labels, [str(i) for i in range(len(labels))], names, sites)
    experiment = load(
        "cifar100",
        [
            f"split.known={CLASSES}", "split.novel=[]", "novel=[]", 'split.partition="by-site"',
            f"split.participants={work.clients}", f"federation.clients={work.clients}", "known.eta=0",
            f'model.name="{work.model}"', "model.mean=[0.5]", "model.std=[0.25]", "data.augment={crop=0,flip=false}",
            f"train.lr={LR}", f"train.momentum={MOMENTUM}", f"train.weight_decay={WEIGHT_DECAY}",
            'train.schedule="constant"', f"train.batch={work.batch}", f"train.local_epochs={work.epochs}",
            "known.rounds=1000000", f'machine.device="{work.device}"', f"machine.threads={work.threads}",
            *settings,
        ],
    )  # fmt: skip
    return simulate(experiment, dataset=Dataset("noise", noise, noise))


def travelled(site: Site, tensors: Tensors, options: Options) -> Reply:
    """What a client that has nothing to do sends: the model as it came."""
    site.worker.load(tensors)
    return Reply(site.worker.take())


def main() -> None:
    """One process of ours."""
    work, settings = told(), [setting for setting in sys.argv[1:] if setting != FORGETFUL]
    if FORGETFUL in sys.argv:
        machine.keep_freed_memory = lambda: None
    federation, net = simulation(work, settings), Net(work)
    worker = federation.worker
    worker.network.extractor.load_state_dict(net.extractor.state_dict())
    worker.network.head.load_state_dict(net.head.state_dict())
    state = State("known", 0, worker.take(), worker.layout.id, federation.state.classes)
    flow = federation.flow(state)
    asked = next(flow)
    idle = InProcess(federation.fleet._sites, federation.participants, {"travel": travelled})

    def train() -> None:
        nonlocal asked, state
        assert isinstance(asked, Sum)
        total = federation.fleet.answer(asked)
        if total.failures or total.metrics["images"] != work.trained:  # type: ignore[union-attr]  # answers a Sum
            raise RuntimeError(str(total))
        stepped = flow.send(total)
        assert isinstance(stepped, State)
        state, asked = stepped, next(flow)

    def travel() -> None:
        nonlocal state
        total = idle.answer(Sum(federation.participants, "travel", {n: state.tensors[n] for n in MODEL}, state.version))
        tensors = FEDERATED["fedavg"].update(state, total, work.clients)  # type: ignore[arg-type]  # answers a Sum
        state = State("known", state.round + 1, tensors, state.layout, state.classes)

    def agreed() -> Net:
        worker.load(state.tensors)
        net.extractor.load_state_dict(worker.network.extractor.state_dict())
        net.head.load_state_dict(worker.network.head.state_dict())
        return net

    serve(work, {}, train if work.trains else travel, agreed)


if __name__ == "__main__":
    main()
