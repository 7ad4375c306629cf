"""A site's link to the server without a program in between: it fetches orders and sends replies by Flower's fleet API.

Flower's own SuperNode starts a process for every message, looks for messages every three seconds, and runs whatever
code the server sends along. This link answers in the process that holds network and images, looks up to ten times a
second, and runs nothing that was sent. It is the one place that uses what Flower does not call public; where a
release has moved it, ``link = "supernode"`` in site.toml still works, by Flower's own programs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx

from asterism.errors import AsterismError
from asterism.runs.flower.pulling import FIRST, LONGEST
from asterism.runs.flower.records import replied
from asterism.runs.parcel import Parcel

try:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto import fleet_pb2, heartbeat_pb2
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        inflate_object_from_contents,
        pull_objects,
        push_objects,
    )
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
except ImportError as error:
    raise AsterismError(
        f"this release of Flower has moved what the direct link uses: {error}",
        where="link",
        fix='link = "supernode" in site.toml, or a release of Flower from pyproject.toml',
    ) from None

HEARTBEAT = 10  # seconds, the least that Flower takes: a lost site is noticed after two
QUICK, SLOW = 0.1, 1.0  # seconds between two looks for an order, soon after one and long after
AGAIN = 1.0  # seconds before a call that nobody answered is made again

Answer = Callable[[Parcel], Parcel]
Note = Callable[..., None]


class StoppedError(Exception):
    """The link was stopped while a call was being tried again."""


@dataclass(frozen=True)
class Address:
    """Where the server is, how to know it, and with which key to sign."""

    server: str
    authority: Path | None  # None: no TLS
    key: Path


class Link:
    """A connection that carries orders to ``answer`` and its replies back, until it is stopped or no longer admitted.

    While the server cannot be reached every call is tried again: a server that was restarted knows the site still.
    """

    def __init__(self, address: Address, answer: Answer, note: Note, stop: Event) -> None:
        self._answer, self._note, self._stop, self._out = answer, note, stop, Event()
        private = private_key(address.key)
        self._public = public_key_to_bytes(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            address.server,
            address.authority is None,
            None if address.authority is None else str(address.authority),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )

    def carry(self) -> None:
        """Signs in and carries messages; returns when stopped, raises where the server does not admit the site."""
        with self._client:
            request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
            self._note("connected")
            heart = Thread(target=self._beat, daemon=True)
            heart.start()
            try:
                with suppress(StoppedError):
                    self._carry_all()
            finally:
                self._out.set()
                heart.join()
                with suppress(httpx.HTTPError):  # the server then notices for itself
                    self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))

    def _carry_all(self) -> None:
        pause = QUICK
        while not self._stop.is_set() and not self._out.is_set():
            try:
                found = self._call(self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=self._node))
                if found.messages_list:
                    self._carry_one(found)
                    pause = QUICK
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    raise
                self._note("dropped", reason=broken(error))  # an order of a run that is over, say
            except ObjectPullError as error:
                self._note("dropped", reason=str(error))
            self._stop.wait(pause)
            pause = min(SLOW, pause * 1.2)

    def _beat(self) -> None:
        """Tells the server that the site is there; a server that no longer knows it ends the link."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not self._stop.is_set() and not self._out.wait(HEARTBEAT / 2):
            try:
                known = self._client.SendNodeHeartbeat(request).success
            except httpx.HTTPError:
                continue  # the loop above meets the same
            if not known:
                self._out.set()

    def _carry_one(self, found: Any) -> None:
        """Fetches an order's tensors, has it answered, and sends the reply."""
        order = message_from_proto(found.messages_list[0])
        run, identity = order.metadata.run_id, order.metadata.message_id
        names = [tree.object_id for tree in iterate_object_tree(found.message_object_trees[0])]
        pull = make_pull_object_fn_protobuf(partial(self._call, self._client.PullObject), self._node, run)
        contents = pull_objects(names, pull, initial_backoff=FIRST, backoff_cap=LONGEST)
        received = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=identity)
        self._call(self._client.ConfirmMessageReceived, received)
        message: Any = inflate_object_from_contents(identity, contents)
        message.metadata.__dict__["_message_id"] = identity
        self._send(replied(message, self._answer))

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        """What a call gives, made again and again while nobody answers."""
        unreachable = False
        while True:
            try:
                return call(request)
            except httpx.TransportError as error:
                why = broken(error)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    raise
                why = broken(error)
            if not unreachable:
                self._note("unreachable", reason=why)
                unreachable = True
            if self._stop.wait(AGAIN) or self._out.is_set():
                raise StoppedError

    def _send(self, reply: Message) -> None:
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],
            )
            pushed = self._call(self._client.PushMessages, request)
            push_objects(
                get_all_nested_objects(reply),
                make_push_object_fn_protobuf(
                    partial(self._call, self._client.PushObject), self._node, reply.metadata.run_id, pushed.session_id
                ),
                object_ids_to_push=set(pushed.objects_to_push),
            )


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """The site's private key in an OpenSSH file."""
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise AsterismError(
            f"no private key: {error}", where=str(file), fix="asterism certificates makes one"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise AsterismError("not an elliptic curve key of 384 bits", where=str(file), fix="asterism certificates")
    return key


def broken(error: Exception) -> str:
    """One sentence about what broke a link."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server refuses this site ({error.response.status_code}): {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
