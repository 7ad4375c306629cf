"""A run told again from its recorded answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from asterism.errors import AsterismError
from asterism.experiment import load
from asterism.flow import State, run
from asterism.runs.replay import Replay
from asterism.runs.simulate import simulate
from asterism.runs.store import RunFolder


def replay(folder: Path) -> dict[str, Any]:
    """For each stage: whether the server's side, given the recorded answers, ends in the state that the run kept."""
    experiment = load(folder / "config.toml")
    kept = RunFolder(folder).newest()
    if kept is None:
        raise AsterismError("the run kept no state", where=str(folder))
    simulation = simulate(experiment)
    final = run(simulation.known(simulation.state), Replay(folder).answer, lambda state: None)
    return {final.stage: {"round": final.round, "same": same(final, kept.state)}}


def same(one: State, other: State) -> bool:
    """Whether two states agree in every bit."""
    return (one.stage, one.round, one.layout, one.classes) == (
        other.stage,
        other.round,
        other.layout,
        other.classes,
    ) and (
        one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(value.cpu(), other.tensors[name].cpu()) for name, value in one.tensors.items())
    )
