"""A run whose participants are the virtual nodes of Flower's simulation runtime, which spreads them over Ray's cluster.

The server's side is ``asterism run`` itself, in the server app's thread, and ends in the same folder with the same
bits. A cluster's machines must share that folder (``asterism.runs.flower.virtual_sites``).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from asterism.aggregate import Outcome
from asterism.data.sources import load as load_images
from asterism.errors import AsterismError
from asterism.experiment import load as load_experiment
from asterism.flow import Answer, Ask, Reply
from asterism.runs.driver import Progress
from asterism.runs.execute import execute, settled_split
from asterism.runs.flower.fleet import Flower, Node
from asterism.runs.flower.virtual_sites import PARTITION, WHO, virtual_sites
from asterism.runs.inprocess import Watch
from asterism.runs.simulate import Simulation
from asterism.runs.store import RunFolder
from asterism.site import Gate, let_out

POLL = 0.02  # seconds between two looks for a reply
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # named for where "0" is the default; read where Ray is imported


def execute_simulated(folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Brings the run in ``folder`` to its end over virtual nodes, from wherever it stands, and gives its results."""
    if find_spec("ray") is None:
        raise AsterismError("Flower's simulation runtime needs Ray", fix="pip install 'asterism[simulation]'")
    folder = folder.resolve()
    experiment = load_experiment(folder / "config.toml")
    loaded = load_images(experiment.data, seed=experiment.seed)
    participants = settled_split(folder, experiment, loaded.dataset).participants
    ended, found = Event(), list[dict[str, Any]]()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def fleet(simulation: Simulation, kept: RunFolder) -> Virtual:
            return Virtual(grid, simulation, kept, ended)

        found.append(execute(folder, progress, lambda settings, seed: loaded, fleet))

    logging.getLogger("flwr").setLevel(logging.ERROR)  # it would warn of its own function, the only one from Python
    try:
        run_simulation(server, virtual_sites(str(folder)), len(participants), backend_config=ray_settings())
    finally:
        ended.set()  # the server app's thread would wait for replies that nobody gives any more
    return found[0]


def ray_settings() -> dict[str, Any]:
    """A process of Ray for each core, in the cluster that ``RAY_ADDRESS`` names or on this machine alone."""
    # What goes wrong in such a process comes back as the participant's failure.
    start: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not os.environ.get("RAY_ADDRESS"):
        os.environ[ON_LOOPBACK] = "0"  # whoever reaches Ray may run what they like
        start["address"] = "local"
    return {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": start}


class Virtual:
    """Answers asks by the virtual nodes, each for the participant whose number is its partition."""

    def __init__(self, grid: Grid, simulation: Simulation, kept: RunFolder, ended: Event) -> None:
        if simulation.worker.device.type != "cpu":
            raise AsterismError(
                "virtual nodes compute on the CPU", fix="--set machine.device=cpu, or leave out --flower"
            )
        self.gates: Sequence[Gate] = ()
        self.watch: Watch | None = None
        self._stores, self._ended = kept.stores, ended
        self._stores.restore(kept.step)  # what a killed run remembered after its newest state
        named = self._named(grid, simulation.participants)
        experiment = simulation.experiment
        self._fleet = Flower(
            grid, experiment.name, deadline=experiment.federation.deadline, poll=POLL, nodes=self._while_it_runs(named)
        )

    def answer(self, ask: Ask) -> Answer:
        """What the participants answer, failures included."""
        self._fleet.watch = lambda participant, outcome: self._seen(participant, ask, outcome)
        answer = self._fleet.answer(ask)
        for participant in ask.participants:
            self._stores.reread(participant)
        return answer

    def _seen(self, participant: str, ask: Ask, outcome: Outcome) -> None:
        if isinstance(outcome, Reply):
            let_out(participant, ask, outcome, self.gates)
        if self.watch is not None:
            self.watch(participant, outcome)

    def _while_it_runs(self, named: Mapping[str, Node]) -> Callable[[], Mapping[str, Node]]:
        def nodes() -> Mapping[str, Node]:
            if self._ended.is_set():
                raise AsterismError("Flower's simulation runtime has ended before the run", fix="its log says why")
            return named

        return nodes

    def _named(self, grid: Grid, participants: Sequence[str]) -> dict[str, Node]:
        """The node of every participant. Flower numbers nodes at random, and only they know their partitions."""
        nodes, named = self._while_it_runs({}), dict[str, Node]()
        while len(numbers := list(grid.get_node_ids())) < len(participants):
            nodes()
            time.sleep(POLL)
        asked = set(grid.push_messages([Message(RecordDict(), number, WHO) for number in numbers]))
        while len(named) < len(numbers):
            nodes()
            for reply in grid.pull_messages(asked):
                if reply.has_error():
                    raise AsterismError(f"a virtual node cannot start: {reply.error.reason}")
                asked.discard(reply.metadata.reply_to_message_id)
                partition = int(str(reply.content.config_records[WHO][PARTITION]))
                named[participants[partition]] = Node(reply.metadata.src_node_id)
            time.sleep(POLL)
        return named
