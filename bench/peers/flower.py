"""Flower: its FedAvg strategy on its simulation runtime, one Ray actor for each core; on a GPU, one actor.

Told ``local``, the same app without Ray: a grid in memory calls the client app in this process. That is no product of
Flower's, but it is the least that its messages and records cost.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any, cast

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from bench.peers import flower_client
from bench.peers.work import Net, Work, network, serve, told


def serve_rounds(grid: Grid, work: Work, versions: dict[str, str], actors: int) -> None:
    """Plays rounds of the strategy on a grid."""
    net = network(work)
    arrays = ArrayRecord(net.state_dict())
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
    theirs = replace(work, threads=max(1, work.threads // actors))
    config = ConfigRecord({"work": json.dumps(asdict(theirs))})

    def play() -> None:
        nonlocal arrays
        arrays = strategy.start(grid, arrays, num_rounds=1, train_config=config).arrays

    def agreed() -> Net:
        net.load_state_dict(arrays.to_torch_state_dict())
        return net

    serve(work, versions | {"actors": str(actors)}, play, agreed)


class Local(Grid):
    """A grid that hands each message to the client app at once."""

    def __init__(self, clients: int) -> None:
        self.contexts = {
            node: Context(0, node, {"partition-id": node - 1}, RecordDict(), {}) for node in range(1, clients + 1)
        }
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Nothing: there is one run."""

    @property
    def run(self) -> Any:
        """The one run."""
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Any:
        """An old way to make messages, which nobody asks for."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Every client's number."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[Any]:
        """Not asked for by the strategy."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """The clients' answers are there when this returns."""
        numbers = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            numbers.append(str(number))
            self.replies[str(number)] = flower_client.app(message, self.contexts[message.metadata.dst_node_id])
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to those messages."""
        return [self.replies.pop(number) for number in message_ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both at once."""
        return self.pull_messages(self.push_messages(messages))


def main() -> None:
    """One process of this peer."""
    work = told()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    versions = {"flwr": metadata.version("flwr")}
    if sys.argv[1:] == ["local"]:
        from flwr.supercore.task_identity import TaskIdentity  # internal, and asked for by every message

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        serve_rounds(Local(work.clients), work, versions, 1)
        return
    from flwr.simulation import run_simulation

    actors = 1 if work.device == "cuda" else work.threads
    app = ServerApp()

    @app.main()
    def rounds(grid: Grid, context: Context) -> None:
        serve_rounds(grid, work, versions | {"ray": metadata.version("ray")}, actors)

    resources = {"num_cpus": 1, "num_gpus": 1.0 if work.device == "cuda" else 0.0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": actors, "log_to_driver": False}}
    run_simulation(app, flower_client.app, work.clients, backend_config=cast(Any, backend))


if __name__ == "__main__":
    main()
