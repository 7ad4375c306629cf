"""``asterism serve``: one command that starts a federation's whole server side, watches it, and stops it.

Sites reach the gate and nothing else. Behind it, on loopback: Flower's server with its database, and Flower's starter
of the app in which the federation lives. When any of them ends, all are started again, and the life goes on from the
newest state in the run folder.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

from asterism.errors import AsterismError
from asterism.files import Lines, locked, now, read_json
from asterism.runs.flower.commands import Inner
from asterism.runs.sites import certificates
from asterism.runs.sites.health import Health
from asterism.runs.sites.programs import Program, Programs, end_left_over, wait_for
from asterism.runs.sites.settings import FILE, FederationFile

TRIES = 5  # starts in a row that brought no new state
OFTEN = 1.0  # seconds between two looks at the programs
DAYS = 3650


class Server:
    """The server side of one federation."""

    def __init__(self, file: Path, settings: FederationFile, *, insecure: bool = False) -> None:
        if settings.tls is None and not insecure:
            raise AsterismError(
                "no certificate, so nothing would be encrypted",
                where="tls",
                fix="asterism certificates makes test ones; --insecure serves without, on a machine alone",
            )
        self._file, self._settings, self._insecure = file.resolve(), settings, insecure
        self._folder = settings.path(settings.folder)
        self._programs = Programs()
        self._health: Health | None = None

    def run(self, stop: Event) -> dict[str, Any] | None:
        """The results once the last stage is done; None when told to stop before."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = Lines(self._folder / "serve.jsonl")
        flower = self._folder / "flower"
        flower.mkdir(mode=0o700, exist_ok=True)
        try:
            with locked(flower):
                return self._run(stop)
        finally:
            self._programs.stop()
            if self._health is not None:
                self._health.close()
            self._note("stopped")

    def _run(self, stop: Event) -> dict[str, Any] | None:
        if self._settings.health:
            self._health = Health(
                self._settings.health, self._folder / "status.json", lambda: not self._programs.dead()
            )
        tries, newest = 0, self._newest()
        while not stop.is_set():
            number = self._start()
            found = self._watch(number, stop)
            if found is not None or stop.is_set():
                return found
            tries = 0 if self._newest() != newest else tries + 1
            newest = self._newest()
            if tries >= TRIES:
                raise AsterismError(
                    f"ended {TRIES} times without a new state", where=str(self._folder), fix="see its logs"
                )
            self._programs.stop()
        return None

    def _start(self) -> int:
        """Starts every program, in the order in which they need each other; gives Flower's number of the run."""
        inner = Inner(self._folder / "flower", free_port(), on_disk=self._settings.messages == "disk")
        (self._folder / "stopped.json").unlink(missing_ok=True)
        end_left_over("flwr-serverapp", FILE, str(self._file))
        prepare(inner)
        self._programs.start(inner.superlink())
        wait_for(lambda: listens(inner.port), "Flower's server listens", self._programs)
        inner.register({name: self._settings.path(key) for name, key in self._settings.sites.items()})
        self._programs.start(inner.superexec({FILE: str(self._file)}))
        self._programs.start(self._gate(inner))
        host, _, port = self._settings.address.rpartition(":")
        wait_for(lambda: listens(int(port), host), "the gate listens", self._programs)
        number = inner.start_run()
        self._note("serving", address=self._settings.address, tls=not self._insecure, **self._programs.processes())
        return number

    def _gate(self, inner: Inner) -> Program:
        settings = self._settings
        given = {"address": settings.address, "inner": inner.address, "authority": str(inner.authority)}
        if settings.tls is not None and not self._insecure:
            given |= {
                "certificate": str(settings.path(settings.tls.certificate)), "key": str(settings.path(settings.tls.key))
            }  # fmt: skip
        command = [sys.executable, "-m", "asterism.runs.sites.gate", json.dumps(given)]
        return Program("gate", command, self._folder / "flower" / "gate.log")

    def _watch(self, number: int, stop: Event) -> dict[str, Any] | None:
        """The results, or None when something ended that should not have."""
        results, stopped, status = (self._folder / name for name in ("results.json", "stopped.json", "status.json"))
        started = time.time()
        while not stop.wait(OFTEN):
            if results.exists():
                return dict(read_json(results))
            if stopped.exists():
                told = read_json(stopped)
                raise AsterismError(told["what"], where=told["where"], fix=told["fix"])
            dead = self._programs.dead() or _dead_app(status, started)
            if dead is not None:
                self._note("ended", program=dead)
                return None
        return None

    def _newest(self) -> str | None:
        """The newest state that was kept, by name."""
        states = sorted((self._folder / "states").glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        return states[-1].name if states else None

    def _note(self, event: str, **facts: Any) -> None:
        line = self._log.append({"at": now(), "event": event, **facts})
        print(line, flush=True)


def _dead_app(status: Path, started: float) -> str | None:
    """The app's name where the process that wrote the status since ``started`` is no more."""
    if not status.exists() or status.stat().st_mtime < started:
        return None
    number = int(read_json(status)["process"])
    return None if Path(f"/proc/{number}").exists() or sys.platform != "linux" else "app"


def prepare(inner: Inner) -> None:
    """What Flower's programs need before they start: a secret, certificates for loopback, where to call."""
    secret = inner.folder / "secret"
    if not secret.exists():
        descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(32))
    if not inner.authority.exists():
        certificates.make(inner.authority.parent, ["127.0.0.1"], [], DAYS)
    inner.write_connection()


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody answers at a port of this machine."""
    host = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host.strip("[]")
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
