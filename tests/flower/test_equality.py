"""The same flow over sites behind Flower and in one process ends in the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asterism.flow import State, run
from tests.flower.federation import Rehearsal, tiny
from tests.synthetic import same_bits


def whole(rehearsal: Rehearsal, answer: object) -> State:
    """The state after every stage of a rehearsal's experiment."""
    simulation = rehearsal.simulation
    state = simulation.state
    for stage in simulation.stages:
        state = replace(state, stage=stage.name, round=0)
        state = run(simulation.flow(state), answer, lambda state: None)  # type: ignore[arg-type]
    return state


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"federation__algorithm__name": "scaffold"},
        {"novel__0__screening__filter": True, "novel__0__screening__false_alarm": 0.5},
    ],
    ids=["fedavg", "scaffold", "screening"],
)
def test_known_and_novel_stage_over_flower_messages_equal_those_in_process(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    rehearsal = Rehearsal(tmp_path, tiny(**{"novel__0__discovery__floor": 5, **settings}))
    over_messages = whole(rehearsal, rehearsal.greeted().answer)
    in_process = whole(rehearsal, rehearsal.simulation.fleet.answer)
    assert same_bits(over_messages.tensors, in_process.tensors)
    assert (over_messages.classes, over_messages.layout) == (in_process.classes, in_process.layout)
