"""The command lines of Flower's own programs, and the few calls of its command line that we make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.errors import AsterismError
from asterism.files import read_json, write_json
from asterism.runs.flower.app import write_app
from asterism.runs.sites.programs import QUIET, Program, beside_python

CONNECTION = "inner"
AT_ONCE = 4  # calls of Flower's command line, each a process of a second


@dataclass(frozen=True)
class Inner:
    """Flower's server side on loopback: its folder, its port, and the certificate only its own programs see."""

    folder: Path
    port: int
    on_disk: bool = False  # messages and registrations in a file instead of in memory

    @property
    def address(self) -> str:
        """Where Flower listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate that its own programs trust."""
        return self.folder / "tls" / "authority.pem"

    @property
    def environment(self) -> dict[str, str]:
        """What Flower's programs need in theirs."""
        return {"FLWR_HOME": str(self.folder / "home")}

    def superlink(self) -> Program:
        """Flower's server: keeps messages in a database, admits registered sites only."""
        tls = self.folder / "tls"
        command = [
            beside_python("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.authority), "--ssl-certfile", str(tls / "server.pem"),
            "--ssl-keyfile", str(tls / "server.key"), "--enable-supernode-auth",
            *self._database(), "--disable-runtime-dependency-installation",
            "--isolation", "process", "--superexec-auth-secret-file", str(self.folder / "secret"),
        ]  # fmt: skip
        return Program("superlink", command, self.folder / "superlink.log", self.environment)

    def _database(self) -> list[str]:
        return ["--database", str(self.folder / "state.db")] if self.on_disk else []

    def superexec(self, environment: Mapping[str, str]) -> Program:
        """Flower's starter of server apps, which alone knows the secret for it."""
        command = [
            beside_python("flower-superexec"), "--runtime-api-address", self.address,
            "--root-certificates", str(self.authority),
            "--superexec-auth-secret-file", str(self.folder / "secret"),
        ]  # fmt: skip
        return Program("superexec", command, self.folder / "superexec.log", {**self.environment, **environment})

    def write_connection(self) -> None:
        """Flower's command line knows where to call."""
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        lines = ["[superlink]", f'default = "{CONNECTION}"', "", f"[superlink.{CONNECTION}]"]
        lines += [f'address = "{self.address}"', f'root-certificates = "{self.authority}"']
        (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def register(self, keys: Mapping[str, Path]) -> None:
        """Exactly these keys are admitted, each under its site's name; a key that is no longer listed is out."""
        record = self.folder / "registered.json"
        held: dict[str, Any] = read_json(record) if self.on_disk and record.exists() else {}
        wanted = {name: _public_key(file) for name, file in keys.items()}
        for name in [name for name in held if wanted.get(name) != held[name]["key"]]:
            self._call("supernode", "unregister", str(held.pop(name)["node"]), CONNECTION)
            write_json(record, held)
        new = [name for name in wanted if name not in held]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name, node in zip(new, pool.map(lambda name: self._register(name, keys[name]), new), strict=True):
                held[name] = {"key": wanted[name], "node": node}
                write_json(record, held)

    def _register(self, name: str, key: Path) -> str:
        return str(self._call("supernode", "register", str(key), CONNECTION, "--name", name)["node-id"])

    def start_run(self) -> int:
        """Submits the app whose server side lives the federation's life; gives Flower's number of the run."""
        for run in self._call("list", CONNECTION)["runs"]:
            if not run["status"].startswith("finished"):
                self._call("stop", str(run["run-id"]), CONNECTION)
        app = self.folder / "app"
        shutil.rmtree(app, ignore_errors=True)
        write_app(app)
        return int(self._call("run", str(app), CONNECTION)["run-id"])

    def status(self, run: int) -> str:
        """How Flower says a run stands, such as ``running`` or ``finished:failed``."""
        found = [r for r in self._call("list", CONNECTION)["runs"] if int(r["run-id"]) == run]
        return str(found[0]["status"]) if found else "unknown"

    def _call(self, *arguments: str) -> Any:
        done = subprocess.run(
            [beside_python("flwr"), *arguments, "--format", "json"], env={**os.environ, **QUIET, **self.environment},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = {"success": False, "error-message": done.stderr.strip() or done.stdout.strip()}
        if not found.get("success", True):
            raise AsterismError(f"Flower refuses: {found.get('error-message')}", where=f"flwr {' '.join(arguments)}")
        return found


def _public_key(file: Path) -> str:
    try:
        kind, key, *_ = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise AsterismError(f"no public key: {error}", where=str(file), fix="ask the site for its .pub file") from None
    if kind != "ecdsa-sha2-nistp384":
        raise AsterismError(f"a key of kind {kind!r}, only ecdsa-sha2-nistp384 is taken", where=str(file))
    return key


def supernode(server: str, authority: Path, key: Path, socket: Path, port: int, folder: Path) -> Program:
    """Flower's own site program, whose messages go to the participant behind ``socket``."""
    command = [
        beside_python("flower-supernode"), "--superlink", server, "--root-certificates", str(authority),
        "--auth-supernode-private-key", str(key), "--host", "127.0.0.1", "--port", str(port),
        "--node-config", f'socket="{socket}"',
    ]  # fmt: skip
    return Program("supernode", command, folder / "supernode.log", {"FLWR_HOME": str(folder / "home")})
