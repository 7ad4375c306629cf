"""The command line. Whatever is heavy is imported inside the command that needs it, so that ``--help`` is instant."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asterism import cli_config, cli_data, cli_estimate, cli_federation, cli_inspect, cli_suite
from asterism.errors import AsterismError

if TYPE_CHECKING:
    from asterism.experiment import Experiment

app = typer.Typer(
    name="asterism",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated continual novel class learning: find, agree on and learn classes that nobody labelled.",
)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_config.app, name="config")
cli_inspect.register(app)
cli_federation.register(app)
cli_estimate.register(app)
cli_suite.register(app)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting by its dotted key.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN…")]


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in configuration.")] = "demo",
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; made, and must be empty.")] = None,
    seeds: Annotated[bool, typer.Option("--seeds", help="One run for each of the configuration's seeds.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="On a GPU: float32 and deterministic, not fast.")] = False,
    flower: Annotated[bool, typer.Option("--flower", help="On the virtual nodes of Flower's simulation.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation as CONFIG says, and write its results and report."""
    from asterism.experiment import load

    experiment = load(config, [*(overrides or []), *(["machine.exact=true"] if exact else [])])
    if not seeds:
        _run(experiment, out, as_json=as_json, quiet=quiet, flower=flower)
        return
    if not experiment.seeds:
        raise AsterismError(
            "the configuration names no seeds", where=f"seeds in {config}", fix="--set 'seeds=[2023, 2024]'"
        )
    from asterism.runs.execute import default_folder

    out = out or default_folder(experiment)
    folders = [out / f"seed-{seed}" for seed in experiment.seeds]
    for seed, folder in zip(experiment.seeds, folders, strict=True):
        _run(
            experiment.model_copy(update={"seed": seed}),
            folder,
            as_json=False,
            quiet=quiet,
            silent=as_json,
            flower=flower,
        )
    results(folders, as_json=as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.", metavar="RUN")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a stopped run: on a CPU the end is the same, bit for bit, as without the stop."""
    _execute(folder, as_json=as_json, quiet=quiet)


@app.command()
def results(folders: Runs, as_json: AsJson = False) -> None:
    """Show the results of one run, or compare several: mean ± standard deviation over seeds."""
    from asterism.report.read import read_results
    from asterism.report.summary import as_json as rows_as_json
    from asterism.report.summary import comparison, results_table

    found = [read_results(folder) for folder in folders]
    if as_json:
        runs = [{"folder": str(folder), **_raw_results(folder)} for folder in folders]
        _print_json(runs[0] if len(runs) == 1 else {"runs": runs, "summary": rows_as_json(comparison(found))})
        return
    from rich.console import Console

    Console().print(results_table(found))


@app.command()
def report(
    folders: Runs,
    out: Annotated[Path, typer.Option(help="File for the comparison of several runs.")] = Path("comparison.html"),
) -> None:
    """Write report.html of a run again, or one page that compares several."""
    from asterism.report.page import write_comparison, write_report

    typer.echo(write_report(folders[0]) if len(folders) == 1 else write_comparison(folders, out))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="Folder of a run with recorded answers.", metavar="RUN")],
    as_json: AsJson = False,
) -> None:
    """Run the server's side of a run again from its recorded answers, without any participant."""
    from asterism.runs.again import replay as again

    told = again(folder)
    if as_json:
        _print_json(told)
        return
    same = "the same state as the run kept" if told["same"] else "ANOTHER state than the run kept"
    typer.echo(f"{told['stage']} after round {told['round']}: {same}")


def _run(
    experiment: Experiment, out: Path | None, *, as_json: bool, quiet: bool, silent: bool = False, flower: bool = False
) -> None:
    from asterism.runs.execute import new_folder

    _execute(new_folder(experiment, out), as_json=as_json, quiet=quiet or silent, silent=silent, flower=flower)


def _execute(folder: Path, *, as_json: bool, quiet: bool, silent: bool = False, flower: bool = False) -> None:
    from asterism.runs.progress import teller

    if flower:
        cli_federation.require_flower()
        from asterism.runs.flower.simulated import execute_simulated as execute
    else:
        from asterism.runs.execute import execute

    told = teller(quiet=quiet or as_json)
    try:
        found = execute(folder, told)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; go on with: asterism resume {folder}", err=True)
        raise typer.Exit(130) from None
    finally:
        told.close()
    if as_json:
        _print_json({"folder": str(folder), **found})
    elif not silent:
        results([folder])
        typer.echo(f"report: {folder / 'report.html'}")


def _raw_results(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


@contextmanager
def _mistakes_in_three_lines() -> Iterator[None]:
    """A user's mistake ends the program with what, where and fix on standard error and exit code 2."""
    try:
        yield
    except AsterismError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has left; nothing is wrong
        sys.exit(0)


def main(call: Callable[[], object] = app) -> None:
    """Runs the command line."""
    with _mistakes_in_three_lines():
        call()
