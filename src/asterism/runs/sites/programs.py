"""Programs that one command starts, watches and stops: whatever happens to it, none of them is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from asterism.errors import AsterismError

PR_SET_PDEATHSIG = 1
# Flower calls home by default; a federation's programs do not.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
}


@dataclass(frozen=True)
class Program:
    """One program: its command, what its environment has besides ours, and where it writes."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Programs:
    """Programs that live and die together."""

    def __init__(self) -> None:
        self._running: list[tuple[Program, subprocess.Popen[bytes]]] = []

    def start(self, program: Program) -> None:
        """Starts one more; it gets the signal to end when this process is gone, however it went."""
        program.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **QUIET, **program.environment}
        # Flower's programs start each other by name.
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        with program.log.open("ab") as log:
            process = subprocess.Popen(
                list(program.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self._running.append((program, process))

    def dead(self) -> str | None:
        """The name of a program that has ended, if any has."""
        return next((program.name for program, process in self._running if process.poll() is not None), None)

    def processes(self) -> dict[str, int]:
        """The number of each program's process."""
        return {program.name: process.pid for program, process in self._running}

    def stop(self, patience: float = 5.0) -> None:
        """Ends every program and what it started, the last one first."""
        for _, process in reversed(self._running):
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + patience
        for _, process in reversed(self._running):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
        self._running.clear()


def beside_python(name: str) -> str:
    """A program that was installed with this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise AsterismError(f"{name} is not installed", where=str(path.parent), fix="pip install 'asterism[flower]'")
    return str(path)


def end_left_over(name: str, variable: str, value: str) -> None:
    """Ends programs of this name that another start of ours left behind, told by what their environment says.

    A program ends with the command that started it, but not what that program started in turn: the app of a server
    that was killed would go on for a while, and hold the run.
    """
    mark = f"{variable}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        with suppress(OSError):  # it may end while it is looked at, or belong to another user
            command, told = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if name.encode() in command and mark in told.split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                while folder.exists() and b"Z (zombie)" not in (folder / "status").read_bytes():
                    time.sleep(0.05)


def wait_for(ready: Callable[[], bool], what: str, programs: Programs, seconds: float = 60.0) -> None:
    """Returns when ``ready`` says so; an error when a program ends, or it takes too long."""
    end = time.monotonic() + seconds
    while not ready():
        dead = programs.dead()
        if dead is not None:
            raise AsterismError(f"{dead} ended before {what}", fix=f"see {dead}.log in the run folder")
        if time.monotonic() > end:
            raise AsterismError(f"{what}: not within {seconds:.0f} s", fix="see the logs in the run folder")
        time.sleep(0.1)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal to a program and all that it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    """Asks Linux to end this process with its parent; elsewhere a kill of the parent leaves it running."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
