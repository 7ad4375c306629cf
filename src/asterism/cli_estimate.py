"""``asterism estimate``: how many classes a file of features holds, and how far the answer can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from asterism.estimation import Estimate

METHODS = (
    "ppm (the paper's 51 radii), ppm-exact (every radius), macc, emacs (stand-in: EMaCS is not published under this "
    "name; this is the DTC/AutoNovel-type estimator), silhouette, gap, eigengap or louvain."
)
BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 60


def register(app: typer.Typer) -> None:
    """Adds the command of this module to ``app``."""
    app.command()(estimate)


def estimate(
    features: Annotated[Path, typer.Argument(help="An .npy, .npz, .csv or .parquet file, one row per image.")],
    participants: Annotated[str | None, typer.Option(help="Column that says whose a row is.")] = None,
    prototypes: Annotated[bool, typer.Option("--prototypes", help="The rows are prototypes already.")] = False,
    clusters: Annotated[int, typer.Option(help="Local prototypes per participant (C_L).")] = 80,
    method: Annotated[str, typer.Option(help=METHODS)] = "ppm",
    known: Annotated[Path | None, typer.Option(help="File of known classes' prototypes, for macc and emacs.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Setting of the method, as in scale=raw.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the local K-means, and of the method.")] = 0,
    floor: Annotated[int, typer.Option(help="Withhold local prototypes of fewer members.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the stability curve, .svg or .png.")] = None,
) -> None:
    """Estimate how many classes there are among features that nobody labelled."""
    from asterism.data.features import read
    from asterism.estimation import estimate as estimated
    from asterism.estimators import settings_of

    if picture is not None:
        from asterism.report.stability import picture_kind

        picture_kind(picture)  # a wrong ending is told before the work, not after it
    table = read(features, participants)
    found = estimated(
        table.rows,
        participants=table.participants,
        prototypes=prototypes,
        clusters=clusters,
        method=method,
        settings=settings_of(method, settings or []),
        known=None if known is None else read(known).rows,
        sizes=table.sizes if prototypes else None,
        seed=seed,
        floor=floor,
    )
    if picture is not None:
        from asterism.report.stability import write_picture

        write_picture(found, picture)
    typer.echo(json.dumps(found.as_json(), ensure_ascii=False) if as_json else "\n".join(lines(found)))
    if picture is not None and not as_json:
        typer.echo(f"picture: {picture}")


def lines(found: Estimate) -> list[str]:
    """What a reader wants to know, the answer first."""
    low, high = found.interval
    grid, sites = int(found.grid.counts.max(initial=0)), len(found.sites)
    withheld = sum(support.withheld for support in found.sites)
    left = "each tenth of the pool" if sites == 1 else f"each of {sites} sites"
    said = [
        f"estimated   {found.estimated} classes ({found.method})",
        f"verdict     {found.verdict}",
        f"interval    {low} to {high}, leaving out {left}",
        f"pool        {found.prototypes} prototypes" + (f", {withheld} withheld" if withheld else ""),
        f"radii       paper's {len(found.grid.radius)}: at most {grid}   every radius: at most {found.exact}",
    ]
    if found.about.startswith("stand-in"):
        said.append(f"note        {found.about}")
    if found.search is not None:
        low, high = found.search.near
        best, tried = found.search.scores.max(), len(found.search.classes)
        said.append(f"scores      {tried} candidates, best {best:.4g}, near it {low} to {high}")
    if found.plateau is not None:
        start, end, width = found.plateau
        said.append(f"plateau     radius {start:.4g} to {end:.4g}, {100 * width:.1f}% wide")
    if len(found.curve.radius):
        first, last = found.curve.radius[0], found.curve.radius[-1]
        said.append(f"regions     {sparkline(found)}  radius {first:.4g} to {last:.4g}")
    return said


def sparkline(found: Estimate) -> str:
    """The largest count in each of ``COLUMNS`` equal ranges of radii, as bars."""
    import numpy as np

    radius, counts = found.curve
    edges = np.linspace(radius[0], radius[-1], COLUMNS + 1)
    standing = np.searchsorted(radius, edges[:-1], side="right") - 1
    stop = np.searchsorted(radius, edges[1:], side="left")
    highest = [int(counts[start : max(start + 1, end)].max()) for start, end in zip(standing, stop, strict=True)]
    most = max(highest)
    return "".join(BARS[-(-height * (len(BARS) - 1) // most)] for height in highest)
