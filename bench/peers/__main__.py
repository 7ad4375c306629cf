"""Ours beside other frameworks, on the same model, images, clients and steps: one table of ratios from one run.

    python -m bench.peers                  on this machine's CPU
    python -m bench.peers --device cuda --wheels FOLDER
    pip download --python-version 3.12 --only-binary=:all: --no-deps -d FOLDER -r bench/peers/pfl.txt
    pip download --python-version 3.12 --only-binary=:all: --no-deps -d FOLDER -r bench/peers/flower-local.txt

(the last two fill the folder for a machine without a network: 27 MB; Ray is too large, and FedLab has no wheel).

Every peer is a process of its own with packages of its own, installed once from its pinned list beside this file into
``--environments`` (from the network, or without one from ``--wheels``); torch and numpy are this environment's, the
same for all. Rounds of the peers are interleaved, and the table gives medians of their ratios to ours, so that what
else the machine does falls on all alike; where others use the machine, look at the processor's seconds that
``--threads 1`` gives, which leave out waiting. A peer that cannot be run is named with the reason.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from asterism.files import write_json
from bench.peers.work import MARK, Work
from bench.record import described, results_file

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FLOWER_RAY = "flower-ray"


@dataclass(frozen=True)
class Peer:
    """How a peer is started: its adapter, what that is told, its packages, and how its work differs from others'."""

    module: str
    arguments: tuple[str, ...] = ()
    packages: str = ""
    other: tuple[tuple[str, Any], ...] = ()


PEERS = {
    "asterism": Peer("ours"),
    "least": Peer("least"),  # no peer, but the bound of all where models only travel
    "eager loop": Peer("eager"),
    "pfl": Peer("pfl", packages="pfl"),
    "fedlab": Peer("fedlab", packages="fedlab"),
    "flower-local": Peer("flower", ("local",), "flower-local"),
    FLOWER_RAY: Peer("flower", (), "flower"),
}
WORKS = {
    "cpu": {
        "payload-bound": Work(trains=False, images=2),
        "tiny": Work("small", images=256, batch=32),
        "compute-bound": Work(images=64, batch=32),
    },
    "cuda": {
        "payload-bound": Work(trains=False, images=2, device="cuda"),
        "tiny": Work("small", images=2048, batch=256, device="cuda"),
        "compute-bound, TF32 peers": Work(images=4096, device="cuda"),
        "compute-bound, bfloat16 peers": Work(images=4096, device="cuda", half=True, channels_last=True),
    },
}
REACH = 0.35  # how far apart two peers' models may have moved from where all began, as a part of the distance


class Refused(RuntimeError):
    """A peer that cannot be run here, and why."""


class Playing:
    """One peer at one work, ready to play rounds."""

    def __init__(self, peer: Peer, work: Work, folder: Path | None) -> None:
        paths = [*([folder] if folder else []), ROOT / "src", ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        hidden = {} if work.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        more = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PFL_PYTORCH_DEVICE": work.device, **hidden}
        call = [sys.executable, "-m", f"bench.peers.{peer.module}", *peer.arguments]
        # A pipe that nobody reads would fill up.
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, cwd=ROOT,
            env={**os.environ, **more}, errors="replace",
        )  # fmt: skip
        self.versions = self._answer(json.dumps(asdict(work)))["ready"]

    def round(self) -> dict[str, float]:
        """Plays one round; gives its seconds and how far the model has moved since before the first."""
        return self._answer("round")

    def stop(self) -> None:
        """The process has ended."""
        with suppress(OSError):  # what was still to be written, nobody reads any more
            self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]  # a pipe
        self._said.close()

    def _answer(self, line: str) -> dict[str, Any]:
        pipe, output = self._process.stdin, self._process.stdout
        assert pipe is not None and output is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
            for found in output:
                if found.startswith(MARK):
                    answer: dict[str, Any] = json.loads(found.removeprefix(MARK))
                    return answer
        except BrokenPipeError:
            pass
        ended = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        self.stop()
        raise Refused(said[-1] if said else f"ended with {ended}")


def environment(packages: str, folder: Path, wheels: Path | None) -> Path | None:
    """The folder with a peer's packages, made where there is none; None for peers that need no packages."""
    if not packages:
        return None
    wanted, made = (HERE / f"{packages}.txt").read_text(), folder / f"{packages}-py{sys.version_info.minor}"
    stamp = made / ".pinned"
    if not stamp.exists() or stamp.read_text() != wanted:
        call = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(made)]
        call += ["--no-index", "--find-links", str(wheels)] if wheels else []
        done = subprocess.run([*call, "-r", str(HERE / f"{packages}.txt")], capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Refused(errors[-1] if errors else done.stderr.strip()[-200:])
        stamp.write_text(wanted)
    return made


def compared(
    name: str, work: Work, peers: Mapping[str, Peer], repeats: int, folders: tuple[Path, Path | None]
) -> list[Any]:
    """One row for each peer at one work; ratios are to the first of them."""
    refused: dict[str, str] = {}
    rounds: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        playing: dict[str, Playing] = {}
        for peer, how in peers.items():
            try:
                playing[peer] = Playing(how, replace(work, **dict(how.other)), environment(how.packages, *folders))
                stack.callback(playing[peer].stop)
                rounds[peer] = [playing[peer].round()]  # warm-up: first kernels, first pages, compiling
            except Refused as reason:
                refused[peer] = str(reason)
        for _ in range(repeats):
            for peer in rounds:
                rounds[peer].append(playing[peer].round())
    first = next(iter(peers))
    if first in refused:
        raise Refused(f"{first}, to which all are compared: {refused[first]}")
    ours = rounds[first]
    rows: list[dict[str, Any]] = [{"work": name, "peer": peer, "not_run": why} for peer, why in refused.items()]
    for peer, found in rounds.items():
        if work.trains and abs(found[0]["moved"] / ours[0]["moved"] - 1) > REACH:
            raise RuntimeError(f"{peer} did other work: its model moved {found[0]['moved']}, ours {ours[0]['moved']}")
        seconds = statistics.median(r["seconds"] for r in found[1:])
        ratio = statistics.median(r["seconds"] / o["seconds"] for r, o in zip(found[1:], ours[1:], strict=True))
        row = {"work": name, "peer": peer, "seconds_per_round": seconds, "times_ours": round(ratio, 2)}
        if work.trains:
            row["images_per_second"] = round(work.trained / seconds, 1)
        if peer != FLOWER_RAY:  # whose clients are other processes
            row["processor_seconds"] = round(statistics.median(r["processor"] for r in found[1:]), 4)
        row |= {"first_round_seconds": found[0]["seconds"], "rounds_seconds": [r["seconds"] for r in found[1:]]}
        rows.append(row | {"load": [r["load"] for r in found[1:]], "versions": playing[peer].versions})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as lines of text."""
    lines = [f"{'work':31}{'peer':14}{'s a round':>10}{'× ours':>8}{'images/s':>11}{'processor s':>13}"]
    for row in rows:
        start = f"{row['work']:31}{row['peer']:14}"
        if "not_run" in row:
            lines.append(f"{start}  not run: {row['not_run'][:80]}")
            continue
        rate, processor = row.get("images_per_second", ""), row.get("processor_seconds", "")
        lines.append(f"{start}{row['seconds_per_round']:10.3f}{row['times_ours']:8.2f}{rate:>11}{processor:>13}")
    return "\n".join(lines)


def main(
    device: Annotated[str, typer.Option(help='"cpu" or "cuda".')] = "cpu",
    peers: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(PEERS),
    works: Annotated[str, typer.Option(help="Beginnings of their names, separated by commas.")] = "",
    repeats: Annotated[int, typer.Option(help="Rounds measured of each.")] = 5,
    threads: Annotated[int, typer.Option(help="Of each peer on a CPU; of Ray, actors.")] = 2,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
    environments: Annotated[Path, typer.Option(help="Where the peers' packages lie.")] = Path("runs/peers"),
    wheels: Annotated[Path | None, typer.Option(help="Folder of wheels, where there is no network.")] = None,
) -> None:
    """Measures every work and prints the table."""
    found, chosen = described(), [peer for peer in PEERS if peer in peers.split(",")]
    if "asterism" not in chosen:
        chosen = ["asterism", *chosen]  # all ratios are to ours
    for name, work in WORKS[device].items():
        if name.startswith(tuple(works.split(","))):
            how = {peer: PEERS[peer] for peer in chosen}
            found["runs"] += compared(
                name, replace(work, threads=threads), how, repeats, (environments.resolve(), wheels)
            )
            print(table(found["runs"]), flush=True)
            write_json(out or results_file("peers", device), found)


if __name__ == "__main__":
    typer.run(main)
