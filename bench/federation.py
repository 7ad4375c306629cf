"""What a real federation costs: ``python -m bench.federation virtual|processes --out FILE``.

``virtual``: many sites behind a grid in this process: bytes of a message, seconds of a round, the server's memory.
``processes``: server and sites as processes with TLS and node keys on loopback: seconds of a round, by its parts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message
from tests.federation.rehearse import Federation, federation
from tests.flower.grid import LocalGrid

from asterism.algorithms import TASKS
from asterism.experiment import Experiment, load
from asterism.files import read_json, write_json
from asterism.flow import Ask, Total
from asterism.runs.flower.fleet import Flower
from asterism.runs.flower.records import replied
from asterism.runs.parcel import Parcel
from asterism.runs.simulate import Simulation, simulate
from asterism.runs.wire import packed_order, packed_reply, unpacked_order
from asterism.site import perform
from bench.record import described


class LateGrid(LocalGrid):
    """A grid whose sites answer when their reply is asked for, so that no reply waits in memory."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            identity = f"late-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identity
            self._waiting[identity] = message
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        names = {number: name for name, number in self._ids.items()}
        found = [self._waiting.pop(identity) for identity in message_ids]
        return [reply for m in found if (reply := self._handles[names[m.metadata.dst_node_id]](m)) is not None]

    @property
    def _waiting(self) -> dict[str, Message]:
        return self.__dict__.setdefault("waiting", {})  # type: ignore[no-any-return]


def virtual(sites: int, rounds: int) -> dict[str, Any]:
    """Rounds over virtual sites that all train, each message packed and unpacked as on a wire."""
    settings = {"split.participants": sites, "federation.clients": sites, "train.local_epochs": 1, "novel": []}
    simulation = simulate(
        load("demo", {**settings, "split.alpha": 1.0, "known.rounds": rounds, "machine.device": "cpu"})
    )
    made = simulation.fleet._sites[0]

    def answer(name: str, given: Parcel) -> Parcel:
        return packed_reply(perform(made(name), unpacked_order(given, name).ask, TASKS))

    handles = {name: lambda m, name=name: replied(m, partial(answer, name)) for name in simulation.participants}
    fleet = Flower(LateGrid(handles), "bench")
    order, reply = _message_bytes(simulation)
    seconds, peaks = [], []
    flow, answered = simulation.flow(simulation.state), None
    for step in itertools.count():
        try:
            ask = flow.send(answered)
        except StopIteration:
            break
        if step % 2:  # a state to keep
            answered = None
            continue
        started = time.perf_counter()
        assert isinstance(ask, Ask)
        answered = fleet.answer(ask)
        assert isinstance(answered, Total)
        assert not answered.failures
        seconds.append(round(time.perf_counter() - started, 3))
        peaks.append(_peak())
    model = sum(t.nbytes for t in simulation.state.tensors.values())
    return {
        "sites": sites, "seconds_per_round": seconds, "model_bytes": model, "order_bytes": order, "reply_bytes": reply,
        "order_over_model": round(order / model, 4), "reply_over_model": round(reply / model, 4),
        "peak_memory_mib": peaks,
    }  # fmt: skip


def _message_bytes(simulation: Simulation) -> tuple[int, int]:
    ask = next(iter(simulation.flow(simulation.state)))
    order = packed_order("bench", ask)  # type: ignore[arg-type]  # a round begins with an ask
    name = simulation.participants[0]
    reply = packed_reply(perform(simulation.fleet._sites[0](name), unpacked_order(order, name).ask, TASKS))
    return len(order), len(reply)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def processes(sites: int, rounds: int, model: str, link: str) -> dict[str, Any]:
    """Rounds of a federation of real processes, and what the sites' own work is of them."""
    settings = {
        "split.participants": sites, "federation.clients": sites, "split.alpha": 100.0, "train.local_epochs": 1,
        "model.name": model, "known.rounds": rounds, "novel": [], "evaluation.every": 0, "machine.device": "cpu",
        "train.batch": 64, "federation.deadline": 900.0,
    }  # fmt: skip
    experiment: Experiment = load("demo", settings)
    with tempfile.TemporaryDirectory() as folder:
        site = {"link": link}
        with federation(Path(folder), experiment=experiment, site=site) as made:
            started = time.perf_counter()
            made.serve()
            for name in made.sites:
                made.join(name)
            made.wait(lambda: made.events("kept"), "the first round", 600)
            ready = time.perf_counter() - started
            memory = _resident(made)
            made.wait((made.run / "results.json").exists, "the end", 900)
            answered = made.events("answered")
            told = [
                [line["seconds"] for line in made.log(name, "answered") if line["task"] == "known"]
                for name in made.sites
            ]
            size = answered[0]["bytes_down"] // sites
    work = [max(site[number] for site in told) for number in range(rounds)]
    return {
        "sites": sites, "model": model, "link": link, "model_bytes": size, "seconds_to_first_round": round(ready, 1),
        "seconds_per_round": [line["seconds"] for line in answered], "slowest_site_work_seconds": work,
        "seconds_beside_work": [round(line["seconds"] - own, 3) for line, own in zip(answered, work, strict=True)],
        "failures": sum(len(line["failed"]) for line in answered), **memory,
    }  # fmt: skip


def _resident(made: Federation) -> dict[str, int]:
    """Memory of the server's app and of a site's process, in MiB, shared pages counted in part."""
    server = int(json.loads((made.run / "status.json").read_text())["process"])
    sites = [_proportional(made.processes[name].pid) for name in made.sites]
    return {"server_app_mib": _proportional(server), "site_mib": max(sites), "all_sites_mib": sum(sites)}


def _proportional(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024


def main() -> None:
    """Measures, and adds what it found to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["virtual", "processes"])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="small")
    parser.add_argument("--link", default="direct")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    circumstances = described()
    del circumstances["runs"]
    if given.what == "virtual":
        found = virtual(given.sites, given.rounds)
    else:
        found = processes(given.sites, given.rounds, given.model, given.link)
    line = {**circumstances, **found}
    print(json.dumps(line, indent=1))
    if given.out:
        kept = read_json(given.out) if given.out.exists() else {"measurements": []}
        write_json(given.out, {"measurements": [*kept["measurements"], line]})


if __name__ == "__main__":
    main()
