"""``asterism config``: the built-in configurations, what a configuration comes to, and its JSON schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at configurations.")


@app.command("list")
def names() -> None:
    """Names of the built-in configurations, with what each is for."""
    from asterism.experiment import BUILTIN, builtin_names

    for name in builtin_names():
        first = (BUILTIN / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        typer.echo(f"{name:20} {first.removeprefix('# ')}")


@app.command()
def show(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in configuration.")] = "demo",
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Print a configuration with every default written out; the output is itself a configuration."""
    from asterism.experiment import dump, load

    typer.echo(dump(load(config, overrides or [])), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    from asterism.experiment import Experiment

    typer.echo(json.dumps(Experiment.model_json_schema(), indent=1, ensure_ascii=False))
