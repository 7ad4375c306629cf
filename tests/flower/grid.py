"""Flower's server side and site side in one process: a grid that hands each message to its site's app at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pytest.skip("this release of Flower has no TaskIdentity; mend tests/flower/grid.py", allow_module_level=True)

Handle = Callable[[Message], Message | None]


class LocalGrid(Grid):
    """Nodes by name, each with the function that answers its messages; ``away`` are not online."""

    def __init__(self, handles: Mapping[str, Handle]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._handles, self._numbers = dict(handles), itertools.count(1)
        self._ids = {name: number for number, name in enumerate(handles, start=100)}
        self.replies: dict[str, Message] = {}
        self.away: set[str] = set()
        self.pushed: list[Message] = []

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:  # type: ignore[override]
        return None

    def create_message(self, *arguments: object, **more: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=i, name=name) for name, i in self._ids.items() if name not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = {number: name for name, number in self._ids.items()}
        identities = []
        for message in messages:
            identity = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identity
            self.pushed.append(message)
            reply = self._handles[names[message.metadata.dst_node_id]](message)
            if reply is not None:
                self.replies[identity] = reply
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(identity) for identity in message_ids if identity in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError
