"""``asterism data``: which benchmarks there are, how to get them, and how to pack images for fast loading."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from asterism.data.benchmarks import Benchmark

app = typer.Typer(no_args_is_help=True, help="Benchmarks and image files.")

Root = Annotated[str, typer.Option(help="Where benchmarks lie; else $ASTERISM_DATA or the user's cache folder.")]
MIB = 1 << 20


@app.command("list")
def show(
    root: Root = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Lists the benchmarks, and which of them are on this machine."""
    from asterism.data.benchmarks import BENCHMARKS, data_root, place

    folder = data_root(root)
    here = {name: place(benchmark, folder) for name, benchmark in BENCHMARKS.items()}
    if as_json:
        rows = [_described(benchmark, here[name]) for name, benchmark in BENCHMARKS.items()]
        typer.echo(json.dumps({"root": str(folder), "benchmarks": rows}, indent=2))
        return
    typer.echo(_row("digits", "scikit-learn digits", 10, "always here"))
    for name, benchmark in BENCHMARKS.items():
        size = f"{benchmark.archive.bytes // MIB} MiB to fetch" if benchmark.archive else "by hand"
        typer.echo(_row(name, benchmark.title, benchmark.classes, str(here[name] or size)))


def _described(benchmark: Benchmark, here: Path | None) -> dict[str, str | int | None]:
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "classes": benchmark.classes,
        "size": benchmark.size,
        "bytes": benchmark.archive.bytes if benchmark.archive else None,
        "source": benchmark.source,
        "folder": str(here) if here else None,
    }


def _row(name: str, title: str, classes: int, state: str) -> str:
    return f"{name:16} {title:20} {classes:>4} classes   {state}"


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A benchmark that `asterism data list` names.")],
    root: Root = "",
) -> None:
    """Downloads a benchmark, or goes on where an earlier download stopped."""
    from asterism.data.benchmarks import BENCHMARKS, data_root
    from asterism.data.fetch import fetch as fetched
    from asterism.errors import AsterismError

    if name not in BENCHMARKS:
        raise AsterismError(f"no benchmark {name!r}", fix=f"one of {', '.join(BENCHMARKS)}")
    with _progress(name) as progress:
        folder = fetched(BENCHMARKS[name], data_root(root), progress=progress)
    typer.echo(f"{name} is in {folder}")


@app.command()
def pack(
    source: Annotated[str, typer.Argument(help="A benchmark, a folder, a manifest or an .npz file.")],
    out: Annotated[Path, typer.Argument(help="The new folder to write.")],
    shard_mib: Annotated[int, typer.Option(min=1, help="Largest size of one shard.")] = 64,
    size: Annotated[int | None, typer.Option(min=8, help="Pixels per side; else as stored.")] = None,
    seed: Annotated[int, typer.Option(help="Cuts the test part where the source has none.")] = 0,
    skip_bad: Annotated[bool, typer.Option(help="Leave out images that cannot be read.")] = False,
    root: Root = "",
) -> None:
    """Decodes images once and stores them as safetensors shards, which load many times faster."""
    from asterism.data.pack import pack as packed
    from asterism.data.settings import Images
    from asterism.data.sources import load

    loaded = load(Images(images=source, root=root, size=size, skip_bad=skip_bad), seed=seed)
    shards = packed(loaded.dataset, out, shard_mib * MIB)
    images = len(loaded.dataset.train) + len(loaded.dataset.test)
    typer.echo(f"{images} images in {shards} shards in {out}")
    for path in loaded.skipped:
        typer.echo(f"left out: {path}", err=True)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A moving bar on a terminal; ten plain lines in a pipe or a log."""
    if not sys.stdout.isatty():
        yield _lines(name)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(name: str) -> Callable[[int, int], None]:
    said = -1

    def report(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // total
        if tenth > said:
            said = tenth
            typer.echo(f"{name}: {done // MIB} of {total // MIB} MiB ({10 * tenth}%)")

    return report
