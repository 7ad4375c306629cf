"""``asterism doctor`` and ``asterism split``: what one has and who would hold what, before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from asterism.errors import AsterismError

Source = Annotated[
    str, typer.Argument(help="A benchmark's name, an image folder, a CSV manifest, an .npz, or parquet.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to ``app``."""
    app.command()(doctor)
    app.command()(split)


def doctor(
    source: Source,
    clusters: Annotated[int, typer.Option(help="Local prototypes per site that will be asked for (C_L).")] = 0,
    size: Annotated[int | None, typer.Option(help="Pixels per side; as stored where not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Check images before anything starts: readable, one size, enough per class. Exit code 2 if one must act."""
    from asterism.data.doctor import examine
    from asterism.data.settings import Images

    findings = examine(Images(images=source, size=size), clusters=clusters or None)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo("\n".join(_lines(finding)))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(2)


def _lines(finding: Any) -> list[str]:
    mark = {"ok": "ok     ", "warning": "warning", "error": "error  "}[finding.level]
    lines = [f"{mark}  {finding.what}"]
    lines += [f"         where: {finding.where}"] if finding.where else []
    return lines + ([f"         fix:   {finding.fix}"] if finding.fix else [])


def split(
    source: Source,
    novel: Annotated[list[int] | None, typer.Option(help="Classes of a novel stage; once for each stage.")] = None,
    known: Annotated[int | None, typer.Option(help="Known classes; all that are not novel where not given.")] = None,
    participants: Annotated[int, typer.Option()] = 10,
    alpha: Annotated[float, typer.Option(help="α of the Dirichlet distribution.")] = 0.1,
    partition: Annotated[str, typer.Option(help="class, client, client-prior, iid or by-site.")] = "class",
    order: Annotated[str, typer.Option(help="Which classes are novel: by label or by seed.")] = "label",
    seed: Annotated[int, typer.Option()] = 2023,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Save the split as JSON.")] = None,
) -> None:
    """Draw who holds what, show it, and save it for `--set split.file=…`."""
    from rich.console import Console

    from asterism.config import validate
    from asterism.data.picture import site_class_picture
    from asterism.data.settings import Images
    from asterism.data.sources import load
    from asterism.data.split import make_split, save
    from asterism.data.split_settings import Split

    train = load(Images(images=source), seed=seed).dataset.train
    stages = novel or []
    if known is None:
        known = len(train.classes) - sum(stages)
    tables = {
        "known": known, "novel": stages, "participants": participants, "alpha": alpha,
        "partition": partition, "order": order, "seed": seed,
    }  # fmt: skip
    made = make_split(train, validate(Split, tables, source="the command line"), seed)
    console = Console()
    for stage in made.stages:
        console.print(site_class_picture(made, stage, train.labels))
    if out is not None:
        if out.is_dir():
            raise AsterismError("the output is a folder", where=str(out), fix="name a file, e.g. split.json")
        save(made, out, train)
        typer.echo(f"saved: {out}")
