"""``asterism serve``, ``join``, ``status``, ``stage``, ``ledger`` and ``certificates``: a federation of real sites."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from asterism.errors import AsterismError

Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS: everyone on the way reads along. For a machine alone.")
]
stage_app = typer.Typer(no_args_is_help=True, help="Stages of a federation that is being served.")
ledger_app = typer.Typer(no_args_is_help=True, help="The account of what left a site.")


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to ``app``."""
    for command in (serve, join, status, certificates):
        app.command()(command)
    app.add_typer(stage_app, name="stage")
    app.add_typer(ledger_app, name="ledger")


def serve(
    file: Annotated[Path, typer.Argument(help="federation.toml", metavar="FEDERATION")],
    insecure: Insecure = False,
) -> None:
    """Serve a federation until its last stage is done; started again, it goes on where it was."""
    require_flower()
    from asterism.runs.sites.serve import Server
    from asterism.runs.sites.settings import read_federation

    results = Server(file, read_federation(file), insecure=insecure).run(_stopped_by_signal())
    if results is not None:
        typer.echo(json.dumps(results, ensure_ascii=False))


def join(
    file: Annotated[Path, typer.Argument(help="site.toml", metavar="SITE")],
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with this site's images, until stopped."""
    require_flower()
    from asterism.runs.sites.join import Joined
    from asterism.runs.sites.settings import read_site

    Joined(read_site(file), insecure=insecure).run(_stopped_by_signal())


def status(
    folder: Annotated[Path, typer.Argument(help="The run folder of a server, or the folder of a site.")],
) -> None:
    """Show how a server or a site stands, as its last status says."""
    file = folder / "status.json"
    if not file.exists():
        raise AsterismError("no status here", where=str(folder), fix="the folder that its .toml names")
    typer.echo(file.read_text(encoding="utf-8"), nl=False)


def certificates(
    out: Annotated[Path, typer.Option(help="Folder of the keys and certificates.")],
    address: Annotated[list[str], typer.Option(help="Name or number by which sites dial the server; repeatable.")],
    site: Annotated[list[str] | None, typer.Option(help="A site that gets a key pair; repeatable.")] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 365,
) -> None:
    """Make an authority, a server certificate and site keys: for a rehearsal, or a first step."""
    require_flower()
    from asterism.runs.sites.certificates import make

    for made in make(out, address, site or [], days):
        typer.echo(made)


@stage_app.command("start")
def start_stage(
    folder: Annotated[Path, typer.Argument(help="Run folder of the server.", metavar="RUN")],
    stage: Annotated[str, typer.Argument(help="novel-1, novel-2, …")],
) -> None:
    """Let a novel stage begin, whatever the policy says; at once if it is its turn."""
    from asterism.runs.sites.novelty import start_by_hand

    start_by_hand(folder, stage)


@ledger_app.command()
def verify(file: Annotated[Path, typer.Argument(help="ledger.jsonl")]) -> None:
    """Check that no line of a ledger was changed, added or taken out; exit code 2 where one was."""
    from asterism.privacy.chain import broken_line

    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise AsterismError(f"no ledger: {error.strerror}", where=str(file)) from None
    if lines.pop():
        raise AsterismError("the last line is not finished", where=str(file), fix="start the site, which takes it off")
    broken = broken_line(lines)
    if broken is not None:
        raise AsterismError(f"line {broken} does not follow from the one before it", where=str(file))
    typer.echo(json.dumps(_summary(lines)))


def _summary(lines: list[bytes]) -> dict[str, Any]:
    """What a ledger comes to; its last hash, written down elsewhere, shows later that no line was cut off its end."""
    from asterism.privacy.chain import FIRST, digest

    found = [json.loads(line) for line in lines]
    groups = [line["smallest_group"] for line in found if line.get("smallest_group")]
    return {
        "lines": len(found),
        "bytes": sum(line["bytes"] for line in found),
        "tasks": sorted({line["task"] for line in found}),
        "smallest_group": min(groups) if groups else None,
        "last": digest(lines[-1]) if lines else FIRST,
    }


def require_flower() -> None:
    """Refuses to go on where Flower is not installed."""
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise AsterismError("this command needs Flower", fix="pip install 'asterism[flower]'")


def _stopped_by_signal() -> Any:
    """An event that an interrupt or a request to end sets; nothing is torn out in the middle."""
    from threading import Event

    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
