"""The frame of a novel stage: a missed round changes nothing, and a training that diverged leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

from asterism.algorithms import TASKS
from asterism.algorithms.anchor import model
from asterism.algorithms.stage import Plan
from asterism.flow import Answers, Ask, Collect, Failure, State, Total
from asterism.runs.inprocess import InProcess
from asterism.training import Train
from tests.contract.test_novel import METHODS, UNTRAINED, Stage
from tests.synthetic import same_bits


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNTRAINED])
def test_a_missed_round_changes_nothing_but_its_number(method: str) -> None:
    stage, kept = Stage(method), list[State]()

    def answer(ask: Ask) -> Answers | Total:
        if stage.asks and len(kept) == 2 and not isinstance(ask, Collect):
            return Total({}, 0.0, 0, 0, failures=(Failure("site-0", "timeout"),))
        return stage.answer(ask)

    flow = stage.method.flow(
        stage.entered, tuple(stage.novel), stage.p, stage.tiny.setup,
        Plan(6, stage.discovery, stage.screening),
    )  # fmt: skip
    step, reply = next(flow), None
    while len(kept) < 3:
        if isinstance(step, State):
            kept.append(step)
            reply = None
        else:
            reply = answer(step)
        if len(kept) < 3:
            step = flow.send(reply)
    before, after = kept[1], kept[2]
    assert after.round == before.round + 1
    assert same_bits(model(after), model(before))
    target = [state.tensors.get("target", torch.zeros(0)) for state in (before, after)]
    assert torch.equal(*target)


def test_a_client_that_diverges_fails_with_a_sentence_and_keeps_nothing() -> None:
    stage = Stage("gal", "moon", train=Train(batch=8, local_epochs=3, lr=1e30))
    flow = stage.method.flow(
        stage.entered, tuple(stage.novel), stage.p, stage.tiny.setup,
        Plan(1, stage.discovery, stage.screening),
    )  # fmt: skip
    step = next(flow)
    while not (isinstance(step, Ask) and step.task == "gal"):
        step = flow.send(stage.answer(step) if isinstance(step, Ask) else None)
    stored = {name: dict(store) for name, store in stage.stores.items()}
    answer = InProcess(stage.site, tuple(stage.novel), TASKS).answer(step)
    assert len(answer.failures) == len(step.participants)
    assert all("diverged within" in failure.detail for failure in answer.failures)
    for name in step.participants:
        assert stage.stores[name].keys() == stored[name].keys()
        assert all(torch.isfinite(value).all() for value in stage.stores[name].get("moon", {}).values())
