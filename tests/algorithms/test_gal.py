from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from asterism import metrics
from asterism.algorithms.discover import Discovery
from asterism.algorithms.gal import alarm, monitors
from asterism.algorithms.screen import Screening
from asterism.algorithms.stage import Plan
from asterism.evaluation import measure
from asterism.flow import Answer, Answers, Ask, Collect, Reply, State, Sum, Total
from asterism.memory import pseudo_labelled
from asterism.site import Share
from asterism.training import Train
from tests.contract.test_novel import KNOWN, Stage
from tests.synthetic import everything, pictures


def novel_accuracy(stage: Stage, state: State) -> float:
    """Hungarian accuracy on unseen images of the two novel classes, read from the novel rows."""
    images = pictures(20, seed=2)
    test = Share(images, images.labels, torch.arange(len(images)))
    table = measure(state, stage.tiny.worker, test, KNOWN, 4)["novel"]
    return metrics.clustered_accuracy(table) or 0.0


def test_the_flow_is_the_papers_box() -> None:
    """Algorithm 1 walked by hand: one collect of prototypes, then sums, a kept state after each."""
    stage = Stage("gal")
    flow = stage.method.flow(
        stage.entered, ("a", "b", "c"), stage.p, stage.tiny.setup,
        Plan(2, Discovery(clusters=3, classes=2), Screening()),
    )  # fmt: skip
    ask = next(flow)
    assert isinstance(ask, Collect)
    assert (ask.task, ask.participants, ask.options["clusters"]) == ("prototypes", ("a", "b", "c"), 3)
    centres = torch.tensor([[5.0] * 64, [5.1] * 64, [-5.0] * 64])
    sizes = torch.tensor([3, 2, 4])
    reply = Reply({"centres": centres, "sizes": sizes}, version=ask.version)
    state = flow.send(Answers({"a": reply}))
    assert isinstance(state, State)
    assert state.round == 0 and len(state.classes) == 4
    rows = stage.tiny.worker.layout.with_rows(4).head(state.tensors["parameters"])[2:]
    assert sorted(rows[:, 0].round(decimals=2).tolist()) == [-5.0, pytest.approx(5.05)]
    for t in range(2):
        ask = flow.send(None)
        assert isinstance(ask, Sum) and ask.task == "gal"
        assert len(ask.participants) == 2 and ask.options["frozen"] == 2
        kept = flow.send(Total(dict(ask.tensors), 1.0, 1, 1))
        assert isinstance(kept, State) and kept.round == t + 1
    with pytest.raises(StopIteration):
        flow.send(None)


def test_gal_tells_unlabelled_classes_apart() -> None:
    stage = Stage("gal")
    assert novel_accuracy(stage, stage.run(rounds=4)) > 85  # two classes: chance is 50


@pytest.mark.parametrize("loss", ["swl", "bce"])
def test_training_lowers_the_loss_and_it_is_never_zero(loss: str) -> None:
    stage = Stage("gal", loss=loss)
    stage.run(rounds=6)
    assert stage.losses[-1] < stage.losses[0]
    assert min(stage.losses) > 0


def test_random_rows_are_an_option_and_start_elsewhere() -> None:
    states: dict[str, State] = {}
    for initial in ("prototypes", "random"):
        stage = Stage("gal")
        stage.discovery = Discovery(clusters=4, classes=2, initial=initial)
        kept: list[State] = []
        stage.run(keep=kept.append)
        states[initial] = kept[0]
    assert states["random"].classes == states["prototypes"].classes
    rows = {name: state.tensors["parameters"][-128:] for name, state in states.items()}
    # Centroids of what a ReLU gives are never negative; freshly made rows are, half of the time.
    assert rows["prototypes"].min() >= 0 > rows["random"].min()


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "bce"},
        {"forgetting": "distillation"},
        {"detach": True},
        {"batch_statistics": False},
        {"anchor": "previous"},
    ],
    ids=str,
)
def test_every_ablation_trains_and_changes_the_result(settings: dict[str, Any]) -> None:
    plain, changed = Stage("gal", beta=0.5), Stage("gal", beta=0.5, **settings)
    one, other = plain.run().tensors["parameters"], changed.run().tensors["parameters"]
    assert torch.isfinite(other).all()
    assert not torch.equal(one, other)


def test_distillation_sends_the_anchor_and_ema_does_not() -> None:
    stage = Stage("gal", forgetting="distillation")
    stage.run()
    assert "anchor" in stage.asks[-1].tensors


@pytest.mark.parametrize(("weighted", "rounds"), [(True, 0), (False, 3)])
def test_weights_and_lloyd_rounds_are_options_of_the_start(weighted: bool, rounds: int) -> None:
    stage = Stage("gal")
    stage.discovery = Discovery(clusters=4, classes=2, weighted=weighted, lloyd_rounds=rounds)
    stage.run()
    assert [ask.task for ask in stage.asks] == ["prototypes", *["lloyd"] * rounds, "gal", "gal"]


def test_monitors_tell_sharp_weights_from_soft_ones() -> None:
    rows = torch.eye(4)
    sharp, soft = monitors(10 * torch.eye(4), rows, 0.07), monitors(0.001 * torch.eye(4), rows, 0.07)
    assert sharp["largest_weight"] > 0.99 and soft["largest_weight"] == pytest.approx(0.25, abs=0.01)
    assert sharp["feature_norm"] == pytest.approx(10)
    assert alarm({name: float(value) for name, value in sharp.items()}) is None
    assert "collapse" in (alarm({name: float(value) for name, value in soft.items()}) or "")
    assert alarm({}) is None


def test_a_missed_round_keeps_the_model() -> None:
    stage = Stage("gal")
    answers: list[Answer] = []

    def answer(ask: Ask) -> Answer:
        given = Stage.answer(stage, ask)
        answers.append(given)
        return given if isinstance(ask, Collect) else Total({}, 0.0, 0, 0)

    stage.answer = answer  # type: ignore[method-assign]
    states: list[State] = []
    stage.run(keep=states.append)
    assert torch.equal(states[0].tensors["parameters"], states[-1].tensors["parameters"])
    assert math.isfinite(float(states[-1].tensors["parameters"].sum()))


def test_images_taken_for_known_keep_novel_rows_away_from_known_images() -> None:
    """GAL-mixture: with the filter on, what screening kept is learned under the label the known head gives it."""
    mixed = Screening(filter=True, threshold=None, false_alarm=0.05, mixture=1.0)
    train, strayed = Train(batch=8, local_epochs=4, lr=0.05), {}
    for weight in (0.0, 1.0):
        stage = Stage("gal", rounds=10, train=train, pseudo=weight)
        stage.screening = mixed
        end, images = stage.run(rounds=4), pictures(20, seed=2)
        joint = measure(end, stage.tiny.worker, everything(images), KNOWN, 4)["joint"]
        strayed[weight] = int(joint[:KNOWN, KNOWN:].sum())  # known images that are called novel
    assert strayed[1.0] < strayed[0.0]
    site = stage.site("site-0")
    kept = pseudo_labelled(site, "novel-1")
    assert len(kept) > 0
    truth = site.share("novel-1").targets[kept.indices]
    assert float((kept.targets[kept.indices] == truth).float().mean()) > 0.8
