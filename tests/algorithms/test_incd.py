from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.algorithms.discover import Discovery
from asterism.algorithms.incd import Incd, matrix_distance, self_training_loss
from asterism.algorithms.replay import class_sums, extended, moments, replay_loss
from asterism.algorithms.represent import represented
from asterism.algorithms.screen import Screening
from asterism.algorithms.stage import Plan
from asterism.errors import AsterismError
from asterism.evaluation import Reading
from asterism.flow import State, Sum, Total
from asterism.site import Share
from tests.contract.test_novel import KNOWN, Stage
from tests.synthetic import same_bits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("samples", "novel"), [(1, 1), (2, 3), (6, 2)])
def test_self_training_is_cross_entropy_to_what_the_novel_head_sees(samples: int, novel: int) -> None:
    z, rows, head = drawn(samples, 5), drawn(novel, 5, seed=1), drawn(4 + novel, 5, seed=2)
    losses = [-float(torch.log_softmax(head @ s, dim=0)[4 + int((rows @ s).argmax())]) for s in z]
    assert self_training_loss(z, rows, head).item() == pytest.approx(sum(losses) / samples)
    assert torch.autograd.gradcheck(
        lambda a, b: self_training_loss(a, rows, b), (z.requires_grad_(), head.requires_grad_())
    )
    rows.requires_grad_()
    self_training_loss(z, rows, head).backward()  # type: ignore[no-untyped-call]
    assert rows.grad is None


def test_matrices_are_as_far_apart_as_their_unit_vectors() -> None:
    z, before = drawn(3, 4), drawn(3, 4, seed=1)
    one, other = z.flatten().tolist(), before.flatten().tolist()
    lengths = math.hypot(*one), math.hypot(*other)
    literal = math.dist([v / lengths[0] for v in one], [v / lengths[1] for v in other])
    assert matrix_distance(z, before).item() == pytest.approx(literal)
    assert matrix_distance(5 * z, before).item() == pytest.approx(literal)
    assert matrix_distance(z, -z).item() == pytest.approx(2)
    assert torch.autograd.gradcheck(lambda a: matrix_distance(a, before), z.requires_grad_())


@pytest.mark.parametrize("features", [torch.ones(1, 3), torch.zeros(2, 3)])
def test_features_that_have_not_moved_or_vanish_have_a_finite_gradient(features: Tensor) -> None:
    z = features.clone().requires_grad_()
    loss = matrix_distance(z, features)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
    assert z.grad is not None and torch.isfinite(z.grad).all()


@pytest.mark.parametrize(("each", "classes"), [(1, 1), (2, 3)])
def test_replay_is_cross_entropy_of_features_drawn_around_means(each: int, classes: int) -> None:
    means, deviation, noise = drawn(classes, 4), drawn(4, seed=1).abs(), drawn(each, classes, 4, seed=2)
    labels, head = torch.arange(classes) + 1, drawn(6, 4, seed=3)
    losses = [
        -float(torch.log_softmax(head @ (means[c] + deviation * noise[r, c]), dim=0)[c + 1])
        for r in range(each)
        for c in range(classes)
    ]
    assert replay_loss(means, deviation, noise, labels, head).item() == pytest.approx(sum(losses) / len(losses))
    assert torch.autograd.gradcheck(lambda h: replay_loss(means, deviation, noise, labels, h), head.requires_grad_())


def test_moments_summed_over_sites_are_those_of_all_images() -> None:
    z, labels = drawn(30, 4) * 3 + 100, torch.arange(30) % 3
    parts = [class_sums(z[k::4], labels[k::4], 4) for k in range(4)]
    means, deviations = moments(*(sum(p[name] for p in parts) for name in ("sums", "squares", "counts")))  # type: ignore[arg-type]
    for c in range(3):
        torch.testing.assert_close(means[c], z[labels == c].mean(dim=0))
        torch.testing.assert_close(deviations[c], z[labels == c].std(dim=0, correction=0))
    assert means[3].abs().sum() == deviations[3].abs().sum() == 0


def test_newer_classes_join_the_statistics_and_absent_ones_do_not_count() -> None:
    z, labels = drawn(40, 3), torch.tensor([0, 2, 3, 4]).repeat(10)  # nobody has class 1
    whole = extended({}, class_sums(z, labels, 5))
    earlier = extended({}, class_sums(z[labels < 3], labels[labels < 3], 3))
    both = extended(earlier, class_sums(z[labels >= 3], labels[labels >= 3] - 3, 2))
    assert whole["class_found"].tolist() == both["class_found"].tolist() == [True, False, True, True, True]
    torch.testing.assert_close(both, whole)
    spread = torch.stack([z[labels == c].std(dim=0, correction=0) for c in (0, 2, 3, 4)]).mean(dim=0)
    torch.testing.assert_close(whole["class_deviation"], spread.float())


def test_the_flow_asks_for_statistics_once_and_then_trains() -> None:
    stage = Stage("incd")
    flow = stage.method.flow(
        stage.entered, ("a", "b", "c"), stage.p, stage.tiny.setup,
        Plan(2, Discovery(classes=2), Screening()),
    )  # fmt: skip
    begun = next(flow)
    assert isinstance(begun, State) and len(begun.classes) == 4
    ask = flow.send(None)
    assert isinstance(ask, Sum) and (ask.task, ask.participants) == ("class-statistics", ("a", "b", "c"))
    assert {name: ask.options[name] for name in ("first", "known", "classes", "stages")} == {
        "first": 0, "known": 2, "classes": 2, "stages": "",
    }  # fmt: skip
    sums = {"sums": torch.ones(2, 64).double(), "squares": torch.ones(2, 64).double(), "counts": torch.ones(2).double()}
    state = flow.send(Total(sums, 1.0, 1, 1))
    assert isinstance(state, State)
    known = stage.tiny.worker.layout.with_rows(2).head(stage.entered.tensors["parameters"])
    assert torch.equal(state.tensors["joint"][:2], known)
    for t in range(2):
        ask = flow.send(None)
        assert isinstance(ask, Sum) and ask.task == "incd" and ask.options["frozen"] == 2
        assert "joint" not in ask.tensors
        assert {"companion", "anchor", "class_means", "class_deviation"} <= ask.tensors.keys()
        moved = {"companion": ask.tensors["companion"] + 1}
        state = flow.send(Total({**ask.tensors, **moved}, 1.0, 1, 1))
        assert isinstance(state, State) and state.round == t + 1
        # Evaluation reads the joint head while the stage lasts.
        assert torch.equal(state.tensors["joint"].flatten(), moved["companion"])
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    left = end.value.value.tensors
    assert Reading.of(left, torch.device("cpu")).joint is not None and "companion" not in left


def test_statistics_of_the_federation_are_those_of_all_known_images() -> None:
    stage = Stage("incd")
    kept: list[State] = []
    stage.run(keep=kept.append)
    rows = torch.cat(list(stage.labelled.values()))
    stage.tiny.worker.load(stage.entered.tensors)
    z = represented(stage.tiny.worker, Share(stage.images, stage.images.labels, rows))
    labels = stage.images.labels[rows]
    for c in range(KNOWN):
        torch.testing.assert_close(kept[1].tensors["class_means"][c], z[labels == c].mean(dim=0))
    spread = torch.stack([z[labels == c].std(dim=0, correction=0) for c in range(KNOWN)]).mean(dim=0)
    torch.testing.assert_close(kept[1].tensors["class_deviation"], spread, rtol=1e-3, atol=1e-4)


def test_a_second_stage_asks_for_the_classes_of_the_first_alone_and_goes_on_to_the_same_bits() -> None:
    stage = Stage("incd")
    first = replace(stage.run(), stage="novel-2", round=0)
    stage.asks.clear()
    kept: list[State] = []
    second = stage.run(first, keep=kept.append)
    ask = stage.asks[0]
    assert ask.task == "class-statistics"
    assert (ask.options["first"], ask.options["classes"], ask.options["stages"]) == (2, 4, "novel-1")
    start = kept[1].tensors
    assert torch.equal(start["class_means"][:2], first.tensors["class_means"])
    assert torch.equal(start["joint"][:4], first.tensors["joint"])
    stage.tiny.worker.load(first.tensors)
    z = represented(stage.tiny.worker, Share(stage.images, stage.images.labels, torch.cat(list(stage.novel.values()))))
    rows = stage.tiny.worker.layout.head(first.tensors["parameters"])[2:]
    seen = (z @ rows.T).argmax(dim=1)
    for c in sorted(set(seen.tolist())):
        torch.testing.assert_close(start["class_means"][2 + c], z[seen == c].mean(dim=0))
    assert start["class_found"][2:].tolist() == [c in seen for c in range(2)]
    for state in kept:
        assert same_bits(stage.run(state).tensors, second.tensors)
    assert second.tensors["joint"].shape == (6, 64)


def test_a_known_class_that_nobody_has_is_left_out() -> None:
    stage = Stage("incd")
    labels = stage.images.labels
    stage.labelled = {name: rows[labels[rows] == 1] for name, rows in stage.labelled.items()}
    stage.labelled["site-0"] = stage.labelled["site-0"][:0]
    end = stage.run()
    assert end.tensors["class_found"].tolist() == [False, True]
    assert torch.isfinite(end.tensors["joint"]).all()


def test_without_any_known_image_the_stage_says_so_unless_nothing_is_replayed() -> None:
    for settings in ({}, {"replay": 0}):
        stage = Stage("incd", **settings)  # type: ignore[arg-type]
        stage.labelled = {name: rows[:0] for name, rows in stage.labelled.items()}
        if settings:
            assert "class_means" not in stage.run().tensors
        else:
            with pytest.raises(AsterismError, match="whose features iNCD replays"):
                stage.run()


@pytest.mark.parametrize(
    "settings",
    [{"consistency": 0}, {"self_training": 0}, {"replay": 0}, {"distillation": 0}, {"beta": 0.5}, {"drawn": 5}],
    ids=str,
)
def test_every_term_changes_what_is_learned(settings: dict[str, Any]) -> None:
    one, other = Stage("incd").run().tensors, Stage("incd", **settings).run().tensors
    assert all(torch.isfinite(other[name]).all() for name in ("parameters", "joint"))
    assert not torch.equal(one["joint"], other["joint"])


def test_the_extractor_is_free_by_default() -> None:
    stage = Stage("incd")
    assert stage.p == Incd()
    end, size = stage.run(), stage.tiny.worker.layout.extractor_size
    assert not torch.equal(end.tensors["parameters"][:size], stage.entered.tensors["parameters"][:size])
