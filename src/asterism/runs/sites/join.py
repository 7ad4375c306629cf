"""``asterism join``: one command that keeps a site's participant, links it to the server, and stops both.

The participant is this process: it holds images and network, so an order costs no start. The link is tried again
whenever it breaks; a site needs no door of its own to the network, it calls the server.
"""

from __future__ import annotations

from threading import Event, Lock
from typing import Any

from asterism.errors import AsterismError
from asterism.files import Lines, locked, now, write_json
from asterism.runs.sites.doorway import Doorway
from asterism.runs.sites.programs import Programs
from asterism.runs.sites.residence import Residence
from asterism.runs.sites.settings import SiteFile

AGAIN = 2.0  # seconds before a broken link is tried again


class Joined:
    """One site, until it is told to stop."""

    def __init__(self, settings: SiteFile, *, insecure: bool = False) -> None:
        if not settings.key:
            raise AsterismError("no key, so the server cannot know this site", where="key", fix="asterism certificates")
        if not settings.authority and not insecure:
            raise AsterismError(
                "no authority, so the server could be anybody", where="authority", fix="its .pem, or --insecure"
            )
        if insecure and settings.link == "supernode":
            raise AsterismError('link = "supernode" needs TLS', where="link", fix='link = "direct"')
        self._settings, self._insecure = settings, insecure
        self._folder = settings.path(settings.folder)
        self._noting = Lock()

    def run(self, stop: Event) -> None:
        """Takes part until ``stop`` is set."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log = Lines(self._folder / "log.jsonl")
        with locked(self._folder):
            residence = Residence(self._settings, self.note)
            self.note("ready", site=self._settings.name, server=self._settings.server, link=self._settings.link)
            carry = self._by_supernode if self._settings.link == "supernode" else self._directly
            while not stop.is_set():
                carry(residence, stop)
                stop.wait(AGAIN)
            self.note("stopped")

    def _directly(self, residence: Residence, stop: Event) -> None:
        """Carries messages in this process until the link breaks."""
        from asterism.runs.flower.node import Address, Link, broken

        settings = self._settings
        authority = None if self._insecure else settings.path(settings.authority)
        address = Address(settings.server, authority, settings.path(settings.key))
        try:
            Link(address, residence.answer, self.note, stop).carry()
        except AsterismError:
            raise
        except Exception as error:  # whatever a network does: the next try is a new link
            self.note("disconnected", reason=broken(error))

    def _by_supernode(self, residence: Residence, stop: Event) -> None:
        """Lets Flower's own programs carry messages until one of them ends."""
        from asterism.runs.flower.commands import supernode
        from asterism.runs.sites.serve import free_port

        settings, socket = self._settings, self._folder / "socket"
        doorway, programs = Doorway(socket, residence.answer), Programs()
        try:
            programs.start(
                supernode(
                    settings.server, settings.path(settings.authority), settings.path(settings.key), socket,
                    free_port(), self._folder,
                )
            )  # fmt: skip
            self.note("connected")
            while programs.dead() is None and not stop.wait(0.5):
                pass
            self.note("disconnected", reason="see supernode.log")
        finally:
            programs.stop()
            doorway.close()

    def note(self, event: str, **facts: Any) -> None:
        """One line in the site's log, and on its standard output; the newest is the site's status."""
        line = {"at": now(), "event": event, **facts}
        with self._noting:  # the link listens and answers in threads of their own
            print(self._log.append(line), flush=True)
            write_json(self._folder / "status.json", line)
