"""One run as a frozen value: every section of a configuration file, the built-in files, and the way back to TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asterism.algorithms import ALGORITHMS, Method
from asterism.algorithms.discover import Discovery
from asterism.algorithms.gal import Gal
from asterism.algorithms.known import Known
from asterism.algorithms.screen import Screening
from asterism.config import Section, override, read_toml, validate
from asterism.data.settings import Images
from asterism.data.split_settings import Split
from asterism.errors import AsterismError
from asterism.evaluation import Calibration
from asterism.federated import Federation
from asterism.model import Architecture
from asterism.training import Train

BUILTIN = resources.files("asterism") / "builtin"


class Novel(Section):
    """One stage of novel class learning."""

    rounds: Annotated[int, Field(ge=1)] = 30
    screening: Screening = Screening()
    discovery: Discovery = Discovery()
    algorithm: Method = Gal()
    absent: tuple[str, ...] = ()  # participants who take no part in this stage


class Evaluation(Section):
    """How often the state is measured on the test images; always at the end of a stage."""

    every: Annotated[int, Field(ge=0)] = 1  # rounds between measurements; 0: only at the end of a stage
    calibration: Calibration = "matched"  # how novel rows meet known ones in the joint reading


class Machine(Section):
    """Where and how a run computes, and what it keeps."""

    device: str = "auto"  # "cpu", "cuda" (all GPUs), "cuda:1"; auto: all GPUs where there are any
    workers: Annotated[int, Field(ge=0)] = 0  # participants that compute at once; 0: five a GPU, one on a CPU
    threads: Annotated[int, Field(ge=0)] = 0  # of torch on the CPU; 0: as torch finds it
    exact: bool = False  # on a GPU: float32, deterministic, step by step, as on a CPU
    kernels: Literal["own", "torch"] = "own"  # on a GPU, what computes normalisation and SGD
    compile: Literal["auto", "always", "never"] = "auto"  # on a GPU; auto: where a run is long enough to gain by it
    keep: Literal["newest", "all"] = "newest"  # states: the newest and the end of each stage, or every round's
    apart: Annotated[float, Field(ge=0)] = 0.0  # least seconds between two kept states of a stage; 0: every round's
    record: Literal["none", "collect", "all"] = "collect"  # answers kept for a replay


class Paper(Section):
    """The paper's printed numbers, in percent, to stand beside ours."""

    known: float | None = None
    novel: float | None = None
    all: float | None = None


class Experiment(Section):
    """Everything that decides a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: int = 2023
    seeds: tuple[int, ...] = ()  # of a whole table: `asterism run --seeds` runs each of them
    data: Images = Images()
    split: Split
    model: Architecture = Architecture()
    train: Train = Train()
    federation: Federation = Federation()
    known: Known = Known()
    novel: tuple[Novel, ...] = ()
    evaluation: Evaluation = Evaluation()
    machine: Machine = Machine()
    paper: Paper = Paper()

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if len(self.novel) > len(self.split.novel):
            raise ValueError(
                f"{len(self.novel)} novel stages, but split.novel gives classes to {len(self.split.novel)}"
            )
        single = [n.algorithm.name for n in self.novel if not ALGORITHMS[n.algorithm.name].several_stages]
        if single and len(self.novel) > 1:
            several = [name for name, a in ALGORITHMS.items() if a.several_stages and name != "known"]
            raise ValueError(f"{single[0]} is defined for one novel stage; for several take {', '.join(several)}")
        if self.federation.quorum > self.federation.clients:
            raise ValueError(
                f"federation.quorum = {self.federation.quorum} can never be met by {self.federation.clients} clients"
            )
        return self


def builtin_names() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in BUILTIN.iterdir() if file.name.endswith(".toml"))


def load(config: str | Path, overrides: Sequence[str] | Mapping[str, object] = ()) -> Experiment:
    """The experiment of a built-in name or a TOML file, with ``a.b=c`` overrides (or a mapping of them) put in."""
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={_scalar(value)}" for key, value in overrides.items()]
    tables = read_toml(_find(config))
    return validate(Experiment, override(tables, overrides), source=str(config))


def _find(config: str | Path) -> Path:
    if str(config) in builtin_names():
        return Path(str(BUILTIN / f"{config}.toml"))
    path = Path(config)
    if not path.suffix and not path.exists():
        names = ", ".join(builtin_names())
        raise AsterismError(f"no configuration called {str(config)!r}", fix=f"a TOML file, or one of {names}")
    return path


def dump(experiment: Experiment) -> str:
    """The experiment as TOML, every setting written out; ``load`` gives the same experiment back."""
    return "\n".join(_lines(experiment.model_dump(mode="json", exclude_none=True), ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    nested = {k: v for k, v in table.items() if isinstance(v, dict) or _is_tables(v)}
    for key, value in table.items():
        if key not in nested:
            yield f"{key} = {_scalar(value)}"
    for key, value in nested.items():
        dotted = ".".join((*path, key))
        for item in value if isinstance(value, list) else [value]:
            yield ""
            yield f"[[{dotted}]]" if isinstance(value, list) else f"[{dotted}]"
            yield from _lines(item, (*path, key))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _scalar(value: Any) -> str:
    """A scalar or a list of them as TOML, which writes them the way JSON does."""
    return json.dumps(value, ensure_ascii=False)
