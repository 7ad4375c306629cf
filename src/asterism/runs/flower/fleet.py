"""The fleet of real sites: asks go out as Flower messages, replies come in by a pull loop of its own.

Replies are pulled in the order asked, one at a time, and folded before the next: a total is the same in every bit as
in one process, and the server's memory does not grow with the number of sites. Flower names the server as the source
of its own errors, so a failure is told by the message it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from asterism.aggregate import Outcome, answered
from asterism.errors import AsterismError
from asterism.flow import Answer, Ask, Failure
from asterism.runs.flower.records import ORDER, content, parcel
from asterism.runs.wire import packed_order, unpacked_reply

# Flower's codes for a node that left while it owed a reply, and for one that left while it sent the reply.
NODE_UNAVAILABLE, REPLY_INCOMPLETE = 5, 3
GONE = 1e12  # seconds that stand for "no deadline"
LOOK = 1.0  # seconds between two looks whether a site that owes a reply is still connected
GRACE = 60.0  # seconds a message outlives its deadline, so that a reply just in time can still be pulled


@dataclass(frozen=True)
class Node:
    """A site as Flower knows it; another ``since`` means that it was away in between."""

    number: int
    since: str = ""


class Flower:
    """Answers asks over a grid. A site that is away may come back for ``rejoin`` seconds and gets the order again."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        *,
        deadline: float | None = None,
        rejoin: float = 0.0,
        largest: int = 2**31,
        poll: float = 0.1,
        watch: Callable[[str, Outcome], None] | None = None,
        nodes: Callable[[], Mapping[str, Node]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._run, self.watch = grid, run, watch
        self._deadline, self._rejoin, self._largest, self._poll = deadline, rejoin, largest, poll
        self._nodes = nodes or (lambda: named_nodes(grid))
        self._clock, self._sleep = clock, sleep
        self._posted: dict[str, _Sent] = {}
        self._awaited: tuple[str, _Sent, float] | None = None

    def nodes(self) -> Mapping[str, Node]:
        """The sites that are online, by name."""
        return self._nodes()

    def send(self, ask: Ask) -> str | None:
        """Sends an order to its one participant and does not wait; None where it is not online."""
        round = self._round(ask)
        self._send(round, ask.participants)
        sent = round.sent.get(ask.participants[0])
        if sent is None:
            return None
        self._posted[sent.message] = sent
        return sent.message

    def received(self, participant: str, message: str) -> Outcome | None:
        """What a site answered to a message that was sent to it, as soon as it has."""
        sent = self._posted[message]
        outcome = self._pulled(participant, sent)
        if outcome is None and not self._still_there(participant, sent):
            outcome = Failure(participant, "unavailable", "lost")
        if outcome is not None:
            del self._posted[message]
        return outcome

    def _pulled(self, participant: str, sent: _Sent, end: float = GONE) -> Outcome | None:
        """A site's reply, if it has begun to come; its parts are waited for until ``end``, or the site is gone."""
        self._awaited = participant, sent, end
        reply = next(iter(self._grid.pull_messages([sent.message])), None)
        if reply is None:
            return None
        return Failure(participant, "unavailable", "lost") if _lost(reply) else self._read(participant, reply)

    def answer(self, ask: Ask) -> Answer:
        """What the sites answer, failures included."""
        return answered(ask, self._outcomes(ask))

    def _outcomes(self, ask: Ask) -> Iterator[tuple[str, Outcome]]:
        round = self._round(ask)
        self._send(round, ask.participants)
        for participant in ask.participants:
            outcome = self._outcome(round, participant)
            if self.watch is not None:
                self.watch(participant, outcome)
            yield participant, outcome

    def _round(self, ask: Ask) -> _Round:
        return _Round(ask, content(packed_order(self._run, ask)), self._clock() + (self._deadline or GONE))

    def _send(self, round: _Round, participants: tuple[str, ...]) -> None:
        """Sends the order to those who are online; a broadcast's content is stored once."""
        online = self.nodes()
        present = [name for name in participants if name in online]
        group = f"{round.ask.version.stage} {round.ask.version.round}"
        ttl = None if self._deadline is None else self._deadline + GRACE
        messages = [Message(round.content, online[name].number, ORDER, ttl=ttl, group_id=group) for name in present]
        identities = list(self._grid.push_messages(messages)) if messages else []
        for name, message in zip(present, identities, strict=True):
            if message:
                round.sent[name] = _Sent(message, online[name], self._clock())

    def _outcome(self, round: _Round, participant: str) -> Outcome:
        """What one site answers, waited for until the deadline; a site that is lost may come back meanwhile."""
        lost = self._clock()
        while True:
            sent = round.sent.get(participant)
            outcome = None if sent is None else self._pulled(participant, sent, round.end)
            if outcome is not None and not _unavailable(outcome):
                return outcome
            if sent is not None and (outcome is not None or not self._still_there(participant, sent)):
                del round.sent[participant]  # a restarted site never saw the message, or took it to its grave
                lost = self._clock()
            if participant not in round.sent and self._clock() < round.end:
                self._send(round, (participant,))
            if participant not in round.sent and self._clock() >= min(round.end, lost + self._rejoin):
                return Failure(participant, "unavailable", "not connected")
            if self._clock() >= round.end:
                return Failure(participant, "timeout", "no answer before the deadline")
            self._sleep(self._poll)

    def sender_is_there(self) -> bool:
        """Whether the site whose reply is being pulled is still connected, and its deadline has not passed."""
        if self._awaited is None:
            return True
        participant, sent, end = self._awaited
        return self._clock() < end and self._still_there(participant, sent)

    def _still_there(self, participant: str, sent: _Sent) -> bool:
        """Whether a site was connected all the time since it was sent the order, looked at now and then."""
        if self._clock() < sent.looked + LOOK:
            return True
        sent.looked = self._clock()
        return self.nodes().get(participant) == sent.node

    def _read(self, participant: str, reply: Message) -> Outcome:
        if reply.has_error():
            return Failure(participant, "exception", f"Flower's error {reply.error.code}: {reply.error.reason}")
        try:
            found = parcel(reply.content)
        except AsterismError as error:
            return Failure(participant, "rejected", error.what)
        if len(found) > self._largest:
            return Failure(participant, "rejected", f"a reply of {len(found)} bytes, at most {self._largest} are taken")
        return unpacked_reply(found, participant)


@dataclass
class _Round:
    """An ask on its way: the content to send, when to stop waiting, and whose message has which number."""

    ask: Ask
    content: RecordDict
    end: float

    def __post_init__(self) -> None:
        self.sent: dict[str, _Sent] = {}


@dataclass
class _Sent:
    """A message to one site, the connection it went to, and when that was last looked at."""

    message: str
    node: Node
    looked: float


def named_nodes(grid: Grid) -> dict[str, Node]:
    """The nodes that are online, by the name they were registered with."""
    return {
        node.name or f"node-{node.node_id}": Node(node.node_id, node.last_activated_at) for node in grid.get_nodes()
    }


def _unavailable(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.reason == "unavailable"


def _lost(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in (NODE_UNAVAILABLE, REPLY_INCOMPLETE)
