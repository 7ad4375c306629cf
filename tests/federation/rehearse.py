"""A federation of real processes on loopback: folders, keys and settings for it, and the commands that run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asterism.data.sources import load as load_images
from asterism.data.split import make_split, save
from asterism.experiment import Experiment, dump, load
from asterism.files import Lines
from asterism.runs.sites import certificates
from asterism.runs.sites.serve import free_port

PATIENCE = 180.0  # seconds for anything to happen

SMALL = {
    "split.participants": 4,
    "split.alpha": 1.0,
    "federation.clients": 3,
    "federation.deadline": 120.0,
    "known.rounds": 3,
    "novel.0.rounds": 2,
    "novel.0.discovery.floor": 5,
    "train.local_epochs": 1,
    "machine.device": "cpu",
    "machine.keep": "all",
}


@dataclass
class Federation:
    """The folder of one federation and its processes, by name."""

    folder: Path
    experiment: Experiment = field(default_factory=lambda: load("demo", SMALL))
    server: Mapping[str, Any] = field(default_factory=dict)  # further settings of federation.toml
    site: Mapping[str, Any] = field(default_factory=dict)  # further settings of every site.toml

    def __post_init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        train = load_images(self.experiment.data, seed=self.experiment.seed).dataset.train
        split = make_split(train, self.experiment.split, self.experiment.seed)
        self.sites, self.port = split.participants, free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        save(split, self.folder / "split.json", train)
        (self.folder / "experiment.toml").write_text(dump(self.experiment), encoding="utf-8")
        certificates.make(self.folder / "keys", ["127.0.0.1"], self.sites, 2)
        known, *novel = [list(stage.classes) for stage in split.stages]
        given = {
            "experiment": "experiment.toml", "folder": "run", "address": f"127.0.0.1:{self.port}", "classes": known,
            "novel": novel, "shape": [1, 8, 8], "minimum": len(self.sites), "rejoin": 90.0,
            "tls": {name: f"keys/{file}" for name, file in TLS.items()},
            "sites": {name: f"keys/{name}.pub" for name in self.sites},
            "stages": {"images": 1, "sites": 1, "every": 1.0}, **self.server,
        }  # fmt: skip
        (self.folder / "federation.toml").write_text(toml(given), encoding="utf-8")
        for name in self.sites:
            self.write_site(name)

    def write_site(self, name: str, **more: Any) -> Path:
        """The site.toml of a site."""
        given = {
            "name": name, "server": f"127.0.0.1:{self.port}", "images": "digits", "split": "split.json",
            "folder": f"sites/{name}", "key": f"keys/{name}.key", "authority": "keys/authority.pem", "device": "cpu",
            "threads": 1, **self.site, **more,
        }  # fmt: skip
        file = self.folder / f"{given['name']}.toml"
        file.write_text(toml(given), encoding="utf-8")
        return file

    @property
    def run(self) -> Path:
        """The server's run folder."""
        return self.folder / "run"

    def start(self, name: str, command: str, file: str, *more: str) -> subprocess.Popen[bytes]:
        """Starts ``asterism serve`` or ``asterism join``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "asterism", command, str(self.folder / file), *more],
                stdout=out, stderr=out, env=environment, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def serve(self, *more: str) -> subprocess.Popen[bytes]:
        return self.start("server", "serve", "federation.toml", *more)

    def join(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        return self.start(name, "join", f"{name}.toml", *more)

    def kill(self, name: str) -> None:
        """Kills a process as a power cut would."""
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ends every process that is left, sites first."""
        for name in sorted(self.processes, key=lambda name: name == "server"):
            process = self.processes[name]
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        self.processes.clear()

    def said(self, name: str) -> str:
        """What a process wrote."""
        return (self.folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The server's events of one name."""
        file = self.run / "events.jsonl"
        return [line for line in Lines(file) if line["event"] == name] if file.exists() else []

    def log(self, site: str, event: str) -> list[dict[str, Any]]:
        """A site's log lines of one name."""
        file = self.folder / "sites" / site / "log.jsonl"
        return [line for line in Lines(file) if line["event"] == event] if file.exists() else []

    def results(self) -> dict[str, Any]:
        """The results of the whole life, once they are there."""
        file = self.run / "results.json"
        self.wait(file.exists, "results")
        return dict(json.loads(file.read_text(encoding="utf-8")))

    def wait(self, ready: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Returns when ``ready`` says so."""
        end = time.monotonic() + seconds
        while not ready():
            ended = "server" in self.processes and self.processes["server"].poll() not in (None, 0)
            if time.monotonic() > end or ended:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s\n{self.said('server')[-2000:]}")
            time.sleep(0.1)


TLS = {"certificate": "server.pem", "key": "server.key", "authority": "authority.pem"}


@contextmanager
def federation(folder: Path, **more: Any) -> Iterator[Federation]:
    """A federation whose processes are all gone afterwards."""
    made = Federation(folder, **more)
    try:
        yield made
    finally:
        made.stop()


def toml(tables: Mapping[str, Any]) -> str:
    """Settings as TOML, tables last."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    nested = [
        line
        for name, table in tables.items()
        if isinstance(table, dict)
        for line in ("", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items()))
    ]
    return "\n".join([*plain, *nested]) + "\n"
