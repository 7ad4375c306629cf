from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from asterism.algorithms import TASKS
from asterism.algorithms.discover import Discovery
from asterism.algorithms.orchestra import Orchestra, head_loss, ordered, tuning_loss
from asterism.algorithms.screen import Screening
from asterism.algorithms.stage import Plan
from asterism.algorithms.target import Projector, Standardised, Target, projector_of
from asterism.centroids import global_centroids, local_centroids
from asterism.companion import fresh
from asterism.flow import Answers, Ask, Collect, Reply, State, Sum, Total
from asterism.losses import assignment_loss
from asterism.seeds import generator
from asterism.site import perform
from asterism.training import learning_rate
from tests.contract.test_novel import Stage
from tests.synthetic import same_bits

SMALL: dict[str, Any] = {"server_steps": 20, "width": 16, "global_clusters": 8}


def points(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed, "points"))


def directions(*shape: int, seed: int = 1) -> torch.Tensor:
    return normalize(points(*shape, seed=seed), dim=1)


def test_assignment_loss_is_the_printed_sum() -> None:
    z, target, centroids = points(3, 4), points(3, 4, seed=2), directions(5, 4, seed=3)
    summed = 0.0
    for one, other in zip(z, target, strict=True):
        scores = [[float(v @ c / v.norm()) / 0.1 for c in centroids] for v in (other, one)]
        wanted, given = ([math.exp(s) / sum(map(math.exp, line)) for s in line] for line in scores)
        summed -= sum(w * math.log(g) for w, g in zip(wanted, given, strict=True))
    assert float(assignment_loss(z, target, centroids, 0.1)) == pytest.approx(summed / 3, rel=1e-5)


def test_assignment_loss_moves_z_alone_and_is_finite_for_rows_of_zeros() -> None:
    z, target = points(3, 4).requires_grad_(), points(3, 4, seed=2).requires_grad_()
    loss = assignment_loss(z * torch.tensor([[1.0], [1.0], [0.0]]), target, directions(5, 4), 0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert target.grad is None and z.grad is not None
    assert torch.isfinite(z.grad).all() and z.grad[0].abs().sum() > 0
    wide = points(4, 3).double().requires_grad_()
    others = points(4, 3, seed=5).double(), directions(6, 3).double()
    assert torch.autograd.gradcheck(lambda v: assignment_loss(v, *others, 0.5), (wide,))


def test_tuning_adds_the_turns_by_their_weight() -> None:
    z, target, centroids = points(4, 3), points(4, 3, seed=2), directions(5, 3)
    told, turns = points(4, 4, seed=4), torch.tensor([0, 3, 1, 1])
    plain, _ = tuning_loss(z, target, centroids, told, turns, Orchestra(turning=0.0))
    both, right = tuning_loss(z, target, centroids, told, turns, Orchestra(turning=2.0))
    entropy = -sum(float(row.log_softmax(0)[turn]) for row, turn in zip(told, turns, strict=True)) / 4
    assert float(plain) == pytest.approx(float(assignment_loss(z, target, centroids, 0.1)))
    assert float(both - plain) == pytest.approx(2 * entropy, rel=1e-5)
    assert float(right) == sum(int(row.argmax()) == int(turn) for row, turn in zip(told, turns, strict=True)) / 4


def test_head_loss_is_binary_cross_entropy_over_pairs_of_two_views() -> None:
    z, rows = points(6, 4).relu(), points(2, 4, seed=2)
    summed, alike = 0.0, 0
    for i in range(3):
        for j in range(3):
            together = float((z[i] @ rows.T).softmax(0) @ (z[3 + j] @ rows.T).softmax(0))
            same = set(z[i].topk(1).indices.tolist()) == set(z[j].topk(1).indices.tolist())
            summed -= math.log(together if same else 1 - together)
            alike += same
    loss, share = head_loss(z, rows, 1)
    assert float(loss) == pytest.approx(summed / 9, rel=1e-5)
    assert float(share) == pytest.approx(alike / 9)


def test_standardised_rows_have_mean_zero_and_a_single_row_stays() -> None:
    x, layer = points(5, 3), Standardised(3, affine=False)
    torch.testing.assert_close(layer(x).mean(dim=0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(layer(x).std(dim=0, unbiased=False), torch.ones(3), atol=1e-3, rtol=0)
    assert torch.equal(layer(x[:1]), x[:1])
    projected, told = Projector(3, 6)(x)
    assert projected.shape == (5, 6) and told.shape == (5, 4)


def test_local_centroids_are_unit_balanced_and_found_among_clear_groups() -> None:
    centres = torch.eye(4, 8)
    z = normalize(centres.repeat_interleave(6, dim=0) + 0.05 * points(24, 8), dim=1)
    found = local_centroids(z, 4, generator(3, "local"))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(found)))
    assert local_centroids(z, 4, generator(3, "local"), floor=25).shape == (0, 8)
    assert local_centroids(z[:1], 4, generator(3, "local")).equal(z[:1])
    near = [local_centroids(z, 4, generator(seed, "local")) @ centres.T for seed in range(5)]
    assert max(float(scores.amax(dim=0).min()) for scores in near) > 0.98  # a start that takes one of each finds all


def test_global_centroids_are_unit_the_same_again_and_fit_better_than_their_start() -> None:
    pool, start = directions(20, 6), directions(8, 6, seed=2)
    found = global_centroids(pool, start, 0.1, 100)
    assert torch.equal(found, global_centroids(pool, start, 0.1, 100))
    assert torch.equal(start, directions(8, 6, seed=2))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8))
    assert (pool @ found.T).amax(dim=1).mean() > (pool @ start.T).amax(dim=1).mean()
    assert global_centroids(pool[:1], start, 0.1, 3).isfinite().all()


def test_the_target_network_follows_by_parameters_only() -> None:
    worker = Stage("orchestra").tiny.worker
    online, target = projector_of(worker, 16, "online"), Target.of(worker, 16)
    online.load(fresh(lambda: Projector(64, 16), 1, "novel-1"))
    size = worker.layout.extractor_size
    began = torch.zeros(size + len(online.parameters))
    target.load({**worker.take(), "target": began}, images=2)
    statistics = target.twin.buffers.clone()
    for _ in range(2):
        target.follow(worker, online, 0.9)
    fast = torch.cat([worker.parameters[:size], online.parameters])
    torch.testing.assert_close(target.take(), 0.1 * fast + 0.9 * (0.1 * fast))
    assert torch.equal(target.twin.buffers, statistics)


def test_the_flow_clusters_and_tunes_in_turn_then_trains_the_head() -> None:
    stage = Stage("orchestra", head=0.5, **SMALL)
    flow = stage.method.flow(
        stage.entered, ("a", "b", "c"), stage.p, stage.tiny.setup,
        Plan(4, Discovery(classes=2, floor=2), Screening()),
    )  # fmt: skip
    state = next(flow)
    assert isinstance(state, State) and state.round == 0
    size, answer = stage.tiny.worker.layout.extractor_size, None
    for _ in range(2):
        ask = flow.send(answer)
        assert isinstance(ask, Collect) and ask.task == "orchestra-centroids" and ask.options["floor"] == 2
        assert ask.tensors.keys() == {"target", "buffers", "counters"} and len(ask.participants) == 2
        clients = ask.participants
        ask = flow.send(Answers({"a": Reply({"centroids": directions(5, 16)}), "b": Reply({}, 0.0)}))
        assert isinstance(ask, Sum) and ask.task == "orchestra" and ask.participants == clients
        assert ask.options["frozen"] == 4  # no row of the head is tuned
        torch.testing.assert_close(ask.tensors["centroids"].norm(dim=1), torch.ones(8))
        moved = {**ask.tensors, "target": ask.tensors["target"] + 1}
        kept = flow.send(Total(moved, 1.0, 1, 1))
        assert isinstance(kept, State)
        step = kept.tensors["target"] - ask.tensors["target"]
        torch.testing.assert_close(step[size:], torch.ones_like(step[size:]))
        assert step[:size].abs().max() < 0.02  # drawn back to m^L
    for t in range(2, 4):
        before = kept.tensors["parameters"]
        ask = flow.send(None)
        assert isinstance(ask, Sum) and ask.task == "orchestra-head" and ask.options["frozen"] == 2
        assert not {"target", "centroids", "companion", "anchor"} & ask.tensors.keys()
        kept = flow.send(Total({**ask.tensors, "parameters": before + 1}, 1.0, 1, 1))
        assert isinstance(kept, State) and kept.round == t + 1
        assert torch.equal(kept.tensors["parameters"][:size], before[:size])
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    assert end.value.value.tensors.keys() == stage.entered.tensors.keys()


def test_centroids_stay_where_no_client_has_images() -> None:
    stage = Stage("orchestra", head=0.5, **SMALL)
    stage.discovery = Discovery(classes=2)
    empty = {name: share[:0] for name, share in stage.novel.items()}
    stage.novel = empty
    end = stage.run()
    assert [ask.task for ask in stage.asks] == ["orchestra-centroids", "orchestra", "orchestra-head"]
    size = len(stage.entered.tensors["parameters"])
    assert torch.equal(end.tensors["parameters"][:size], stage.entered.tensors["parameters"])


def test_rates_run_over_the_rounds_of_each_phase() -> None:
    stage, rates = Stage("orchestra", **SMALL), list[float]()
    for t in range(6):
        state = State("novel-1", t, stage.entered.tensors, stage.entered.layout, stage.entered.classes)
        rates.append(ordered(stage.tiny.setup.order(state, 6, stage.p))[0].lr)
    train = stage.tiny.train
    assert rates[:4] == [pytest.approx(0.6 * learning_rate(train, t, 4)) for t in range(4)]
    assert rates[4:] == [pytest.approx(learning_rate(train, t, 2)) for t in range(2)]
    assert [Orchestra().tuning(rounds) for rounds in (1, 2, 30)] == [0, 1, 20]
    assert Orchestra(preset="full").global_clusters == 128


def last_ask(stage: Stage, task: str) -> Ask:
    stage.run()
    return next(ask for ask in reversed(stage.asks) if ask.task == task)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_site_of_few_images_sends_as_many_centroids_and_trains(images: int) -> None:
    stage = Stage("orchestra", head=0.5, **SMALL)
    for task in ("orchestra-centroids", "orchestra", "orchestra-head"):
        ask = last_ask(stage, task)
        stage.novel = {name: share[:images] for name, share in stage.novel.items()}
        reply = perform(stage.site("site-0"), ask, TASKS)
        assert reply.weight == 1.0
        assert all(value.isfinite().all() for value in reply.tensors.values())
        if task == "orchestra-centroids":
            assert len(reply.tensors["centroids"]) <= images
        if task == "orchestra":
            assert not torch.equal(reply.tensors["companion"], ask.tensors["companion"])


def test_tuning_moves_the_extractor_and_training_the_head_does_not() -> None:
    stage = Stage("orchestra", head=0.5, **SMALL)
    size = stage.tiny.worker.layout.extractor_size
    for task, moves in (("orchestra", True), ("orchestra-head", False)):
        ask = last_ask(stage, task)
        sent, reply = ask.tensors["parameters"], perform(stage.site("site-1"), ask, TASKS)
        assert torch.equal(reply.tensors["parameters"][:size], sent[:size]) != moves
        assert torch.equal(reply.tensors["parameters"][size:], sent[size:]) == moves
        assert torch.equal(reply.tensors["buffers"], ask.tensors["buffers"]) != moves
    assert all(p.requires_grad for p in stage.tiny.worker.network.parameters())


def test_an_extractor_held_still_is_one_range_that_must_not_move() -> None:
    worker = Stage("orchestra").tiny.worker
    size, width = worker.layout.extractor_size, worker.layout.features
    with worker.still():
        assert worker.fixed(1) == [(0, size), (size, size + width)]
        worker.differentiate(worker.network(torch.rand(2, 1, 8, 8)).square().sum())
    assert not worker.gradient[:size].any() and worker.gradient[size:].any()
    assert worker.fixed(0) == []


@pytest.mark.parametrize("settings", [{"turning": 0.0}, {"following": 0.5}, {"temperature": 0.5}, {"memory": 4}])
def test_every_setting_changes_the_result(settings: dict[str, Any]) -> None:
    one, other = (Stage("orchestra", head=0.5, beta=0.5, **{**SMALL, **more}) for more in ({}, settings))
    assert not torch.equal(one.run(rounds=4).tensors["parameters"], other.run(rounds=4).tensors["parameters"])


def test_a_stage_goes_on_from_the_middle_of_either_phase_to_the_same_bits() -> None:
    stage, kept = Stage("orchestra", head=0.5, **SMALL), list[tuple[State, Any]]()
    whole = stage.run(keep=lambda state: kept.append((state, copy.deepcopy(stage.stores))), rounds=4)
    assert len(kept) == 5
    for state, stores in kept:
        stage.stores = copy.deepcopy(stores)
        assert same_bits(stage.run(state, rounds=4).tensors, whole.tensors)
