"""A run told again from its recorded answers."""

from __future__ import annotations

from dataclasses import replace
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
    """Whether the server's side, given the recorded answers, ends in the newest state that the run kept."""
    experiment = load(folder / "config.toml")
    kept = RunFolder(folder).newest()
    if kept is None:
        raise AsterismError("the run kept no state", where=str(folder))
    simulation = simulate(experiment)
    state, last = simulation.state, kept.state
    for stage in simulation.stages:
        state = replace(state, stage=stage.name, round=0)
        state = run(simulation.flow(state), Replay(folder).answer, lambda state: None)
        if stage.name == last.stage:
            break
    return {"stage": state.stage, "round": state.round, "same": same(state, last)}


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
