"""``asterism suite``: the tables of the paper, one command each, with our numbers beside the printed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from asterism.suite.cost import Forecast
    from asterism.suite.plan import Place, Suite
    from asterism.suite.run import Outcome

MIB, GIB = 1 << 20, 1 << 30


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to ``app``."""
    app.command()(suite)
    app.command()(audit)


def suite(
    files: Annotated[list[Path], typer.Argument(help="Suite files, for example experiments/main.toml.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what is left to do and what it takes; run nothing.")
    ] = False,
    table_only: Annotated[bool, typer.Option("--table-only", help="Write the tables of what there is.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Rows by name, one or several with commas.")] = None,
    seeds: Annotated[list[str] | None, typer.Option(help="Seeds, one or several with commas.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Datasets by name.")] = None,
    budget: Annotated[str | None, typer.Option(help="Stop cleanly before this long is over: 90s, 8m, 1h.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For every run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of results: small files, to be kept.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder of run folders and shared known stages.")] = Path("runs/suite"),
    rate: Annotated[float | None, typer.Option(help="Images a second of ResNet-18 at 32 pixels, for --plan.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure rates for --plan in short runs.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write one Markdown page of all tables as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Make tables of the paper: run what is missing, resume what was cut, and write Markdown, CSV and HTML."""
    from asterism.suite.plan import places, read_suite

    suites = [read_suite(file) for file in files]
    chosen = [
        places(one, only=_parts(only), seeds=[int(s) for s in _parts(seeds)], datasets=_parts(dataset))
        for one in suites
    ]
    settings = overrides or []
    if plan:
        told = [
            _planned(one, part, out, work, settings, rate, calibrate) for one, part in zip(suites, chosen, strict=True)
        ]
        _say_plans(suites, told, as_json=as_json)
        return
    outcomes = []
    if not table_only:
        outcomes = _run(suites, chosen, out, work, settings, budget, quiet=quiet or as_json)
    written = _write(suites, out, settings, page)
    _say_outcomes(suites, outcomes, written, as_json=as_json)
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


def _parts(given: list[str] | None) -> list[str]:
    return [part for text in given or [] for part in text.split(",") if part]


def _planned(
    one: Suite, chosen: tuple[Place, ...], out: Path, work: Path, settings: list[str], rate: float | None,
    calibrate: bool,
) -> Forecast:  # fmt: skip
    from asterism.suite.calibrate import calibrated
    from asterism.suite.cost import forecast, rates
    from asterism.suite.records import read_records

    found = read_records(out)
    measured = rates(found.records, rate)
    if calibrate:
        measured = calibrated(one, chosen, measured, settings)
    return forecast(one, chosen, found, work, measured, settings)


def _say_plans(suites: list[Suite], told: list[Forecast], *, as_json: bool) -> None:
    if as_json:
        plans = {one.name: forecast.as_json() for one, forecast in zip(suites, told, strict=True)}
        typer.echo(json.dumps(plans, indent=1, ensure_ascii=False))
        return
    for one, forecast in zip(suites, told, strict=True):
        typer.echo(one.title)
        for cost in forecast.costs:
            millions = f"{cost.images / 1e6:8.2f} M images"
            typer.echo(f"  {cost.label:60} {millions} {cost.seconds / 60:7.1f} min {cost.memory / GIB:6.1f} GiB")
        for label, sentence in forecast.refused.items():
            typer.echo(f"  {label:60} refused: {sentence}")
        plain = forecast.as_json()
        typer.echo(
            f"  left: {plain['runs']} runs and {plain['known_stages']} known stages, "
            f"{plain['images'] / 1e6:.1f} M images, {forecast.minutes:.1f} minutes, "
            f"about {forecast.memory / GIB:.1f} GiB on the device; done: {forecast.kept} runs"
        )


def _run(
    suites: list[Suite], chosen: list[tuple[Place, ...]], out: Path, work: Path, settings: list[str],
    budget: str | None, *, quiet: bool,
) -> list[Outcome]:  # fmt: skip
    from asterism.suite.budget import Budget, parse
    from asterism.suite.run import Lined, Quiet, Runner

    time = Budget(None if budget is None else parse(budget))
    teller = Quiet() if quiet else Lined(lambda line: typer.echo(line, err=True))
    try:
        return [
            Runner(one, out, work, time, teller, settings).run(part) for one, part in zip(suites, chosen, strict=True)
        ]
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command goes on", err=True)
        raise typer.Exit(130) from None


def _write(suites: list[Suite], out: Path, settings: list[str], page: Path | None) -> list[Path]:
    from asterism.suite.pictures import pictures
    from asterism.suite.records import read_records
    from asterism.suite.table import tabled
    from asterism.suite.written import write

    found = read_records(out)
    tables = [tabled(one, found, overrides=settings) for one in suites]
    written = [file for table in tables for file in write(table, out / table.suite.name, pictures(table))]
    if page is not None:
        from asterism.files import write_text
        from asterism.suite.page import read_audits, reproduction

        write_text(page, reproduction(tables, read_audits(out)))
        written.append(page)
    return written


def _say_outcomes(suites: list[Suite], outcomes: list[Outcome], written: list[Path], *, as_json: bool) -> None:
    if as_json:
        told: dict[str, Any] = {
            one.name: outcome.as_json() for one, outcome in zip(suites, outcomes, strict=bool(outcomes))
        }
        typer.echo(json.dumps({"suites": told, "written": [str(f) for f in written]}, indent=1, ensure_ascii=False))
        return
    for one, outcome in zip(suites, outcomes, strict=bool(outcomes)):
        typer.echo(
            f"{one.name}: {len(outcome.done)} done, {len(outcome.kept)} had been before, "
            f"{len(outcome.failed)} failed, {len(outcome.left)} left"
        )
        for label, sentence in outcome.failed.items():
            typer.echo(f"  failed: {label}: {sentence}")
        for name, sentence in outcome.absent.items():
            typer.echo(f"  left out: {name}: {sentence}")
        if outcome.left:
            typer.echo("  the budget is spent; the same command goes on")
    for file in written:
        typer.echo(f"wrote {file}")


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that has begun a novel stage.", metavar="RUN")],
    stage: Annotated[str, typer.Option(help="Whose prototypes are attacked.")] = "novel-1",
    each: Annotated[int, typer.Option(min=1, help="Prototypes of each size.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Most steps of the attack.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="Also here, without pictures: results/reconstruction/….json")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Attack prototypes: which images can be read out of them, by how many images stand behind one."""
    from asterism.files import write_json, write_text
    from asterism.report.gallery import gallery
    from asterism.report.style import as_file, svg
    from asterism.runs.audit import audit as attacked
    from asterism.runs.audit import without_pictures

    told = attacked(folder, stage=stage, each=each, steps=steps)
    written = [folder / "audit.json", folder / "audit.svg"]
    drawn = svg(gallery(told["groups"]), "audit", "Recovered images beside the nearest real ones")
    write_text(written[1], as_file(drawn))
    if out is not None:
        write_json(out, without_pictures(told))
        written.append(out)
    if as_json:
        typer.echo(json.dumps(without_pictures(told), indent=1, ensure_ascii=False))
        return
    typer.echo(f"{'kind':6}{'images':>8}{'prototypes':>12}{'match':>11}{'PSNR':>8}{'blind':>8}{'cosine':>8}")
    for group in told["groups"]:
        typer.echo(
            f"{group['kind']:6}{group['images']:>8}{group['prototypes']:>12}{group['match']:>11.2e}"
            f"{group['psnr']:>8.1f}{group['blind_psnr']:>8.1f}{group['cosine']:>8.2f}"
        )
    typer.echo("PSNR in dB to the nearest real image behind a prototype; blind: of the site's mean image")
    for file in written:
        typer.echo(f"wrote {file}")
