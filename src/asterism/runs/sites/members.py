"""Who takes part in a federation at this moment: sites that are connected and have agreed to its contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from asterism.aggregate import Outcome
from asterism.flow import Answer, Ask, Collect, Reply, Version
from asterism.runs.sites.contract import HELLO, Contract

Note = Callable[..., None]


class Sites(Protocol):
    """A fleet of real sites: who is connected, and what they answer."""

    def nodes(self) -> Mapping[str, Any]:
        """The connected sites by name; a value that changed means that the site was away in between."""

    def answer(self, ask: Ask) -> Answer:
        """What the sites answer, failures included."""

    def send(self, ask: Ask) -> str | None:
        """Sends an order to its one participant and does not wait; None where it is not connected."""

    def received(self, participant: str, message: str) -> Outcome | None:
        """What a site answered to a message that was sent to it, as soon as it has."""


class Members:
    """Says hello to every site that comes or comes back, and knows who agreed.

    Nobody waits for a hello: a newcomer may have to read many images first. A member that was away for a moment
    stays one while it is greeted again.
    """

    def __init__(self, sites: Sites, contract: Contract, note: Note) -> None:
        self._sites, self._contract, self._note = sites, contract, note
        self._agreed: set[str] = set()
        self._greeted: dict[str, Any] = {}  # the connection over which a site was last greeted
        self._pending: dict[str, str] = {}  # hellos that are not answered yet
        self.refused: dict[str, str] = {}

    def present(self) -> tuple[str, ...]:
        """Names of the members that can be asked now, in the order of the alphabet."""
        online = self._sites.nodes()
        for name in [name for name in self._greeted if name not in online]:
            del self._greeted[name]
            self._note("left", site=name)
        for name in sorted(online):
            if self._greeted.get(name) != online[name]:
                self._greet(name, online[name])
        for name, message in list(self._pending.items()):
            outcome = self._sites.received(name, message)
            if outcome is not None:
                del self._pending[name]
                self._take_in(name, outcome)
        return tuple(sorted(self._agreed & online.keys()))

    def states(self) -> dict[str, dict[str, str]]:
        """How each site that is or was connected stands, for the status page."""
        told = {name: {"state": "present" if name in self._agreed else "greeted"} for name in self._greeted}
        return told | {name: {"state": "refused", "why": why} for name, why in self.refused.items()}

    def _greet(self, name: str, connection: Any) -> None:
        options = {"name": name, "contract": self._contract.model_dump_json()}
        hello = Collect((name,), HELLO, {}, Version(HELLO, 0, self._contract.layout), options)
        message = self._sites.send(hello)
        if message is not None:
            self._greeted[name], self._pending[name] = connection, message

    def _take_in(self, name: str, outcome: Outcome) -> None:
        self.refused.pop(name, None)
        if isinstance(outcome, Reply):
            self._agreed.add(name)
            self._note("joined", site=name, **outcome.metrics)
            return
        self._agreed.discard(name)
        if outcome.reason == "rejected":  # greeted again only when it comes back, perhaps with other data
            self.refused[name] = outcome.detail
        else:
            self._greeted.pop(name, None)
        self._note("not_joined", site=name, reason=outcome.reason, detail=outcome.detail)
