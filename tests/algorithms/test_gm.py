from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.algorithms.discover import Discovery
from asterism.algorithms.gm import GROWN, Gm, branch_distance, unification_loss
from asterism.algorithms.screen import Screening
from asterism.flow import State, Sum, Total
from asterism.losses import consistency_loss, pairwise_loss, same_ranking, two_view_loss
from tests.contract.test_novel import Stage
from tests.synthetic import same_bits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_unification(z: Tensor, rows: Tensor, grown: Tensor, confident: float) -> float:
    """Cross entropy of the surest samples to C_L plus the grown head's arg-max, one sample after the other."""
    found = [torch.softmax(grown @ sample, dim=0) for sample in z]
    surest = sorted(range(len(z)), key=lambda i: -float(found[i].max()))[: max(1, round(confident * len(z)))]
    known = len(rows) - len(grown)
    losses = [-float(torch.log_softmax(rows @ z[i], dim=0)[known + int(found[i].argmax())]) for i in surest]
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("samples", "confident"), [(1, 0.5), (2, 0.01), (7, 0.5), (6, 1.0)])
def test_unification_is_cross_entropy_of_the_surest_pseudo_labels(samples: int, confident: float) -> None:
    z, rows, grown = drawn(samples, 5), drawn(6, 5, seed=1), drawn(2, 5, seed=2)
    found = unification_loss(z, rows, grown, confident)
    assert found.item() == pytest.approx(literal_unification(z, rows, grown, confident))
    assert found > 0


def test_unification_has_the_gradient_of_its_value_and_none_to_the_grown_head() -> None:
    z, rows, grown = drawn(5, 4).requires_grad_(), drawn(5, 4, seed=1).requires_grad_(), drawn(2, 4, seed=2)
    assert torch.autograd.gradcheck(lambda a, b: unification_loss(a, b, grown, 0.6), (z, rows))
    grown.requires_grad_()
    unification_loss(z, rows, grown, 0.6).backward()  # type: ignore[no-untyped-call]
    assert grown.grad is None


def test_unification_with_one_novel_class_names_every_sample_by_it() -> None:
    z, rows = drawn(4, 3), drawn(3, 3, seed=1)
    expected = -torch.log_softmax(z @ rows.T, dim=1)[:, 2].mean()
    torch.testing.assert_close(unification_loss(z, rows, rows[2:], 1.0), expected)


def test_branches_are_as_far_apart_as_their_samples_on_average() -> None:
    one, other = drawn(3, 4).requires_grad_(), drawn(3, 4, seed=1)
    literal = sum(math.dist(a, b) ** 2 for a, b in zip(one.tolist(), other.tolist(), strict=True)) / 3
    assert branch_distance(one, other).item() == pytest.approx(literal)
    assert branch_distance(other, other) == 0
    assert torch.autograd.gradcheck(lambda z: branch_distance(z, other), one)


@pytest.mark.parametrize("images", [1, 2, 5])
def test_two_views_lose_by_pairs_and_by_disagreement(images: int) -> None:
    z, rows, weight = drawn(2 * images, 6), drawn(3, 6, seed=1), torch.tensor(7.0, dtype=torch.float64)
    one, two = (z[:images] @ rows.T).softmax(dim=1), (z[images:] @ rows.T).softmax(dim=1)
    same = same_ranking(z[:images], 2)
    pairs = 0.0
    for i in range(images):
        for j in range(images):
            together = float(one[i] @ two[j])
            pairs -= math.log(together) if same[i, j] else math.log(1 - together)
    apart = sum((a - b) ** 2 for a, b in zip(one.flatten().tolist(), two.flatten().tolist(), strict=True))
    loss, alike = two_view_loss(z, rows, 2, weight)
    assert loss.item() == pytest.approx(pairs / images**2 + 7 * apart / (3 * images))
    assert alike.item() == pytest.approx(same.double().mean().item())
    assert two_view_loss(z, rows, 2)[0] == pairwise_loss(one, same, two)
    assert loss - two_view_loss(z, rows, 2)[0] == pytest.approx(7 * consistency_loss(one, two).item())


@pytest.mark.parametrize(("rounds", "grown"), [(1, 1), (2, 1), (3, 2), (10, 7), (30, 20)])
def test_two_thirds_of_the_rounds_grow_and_the_first_always_does(rounds: int, grown: int) -> None:
    assert Gm().grown(rounds) == grown
    assert Gm(growing=1).grown(rounds) == rounds


def test_the_flow_grows_then_merges() -> None:
    stage = Stage("gm", distance=0)
    flow = stage.method.flow(
        stage.entered, ("a", "b", "c"), stage.p, stage.tiny.setup,
        rounds=3, discovery=Discovery(classes=2), screening=Screening(),
    )  # fmt: skip
    state = next(flow)
    assert isinstance(state, State) and len(state.classes) == 4
    for t in range(3):
        ask = flow.send(None)
        assert isinstance(ask, Sum) and ask.task == "gm" and ask.options["frozen"] == 2
        # Without a distance to keep, m^L is of use in merging alone, as is the head that growing left.
        assert ("anchor" in ask.tensors) == (GROWN in ask.tensors) == (t == 2)
        if t == 2:
            rows = stage.tiny.worker.layout.with_rows(4).head(state.tensors["parameters"])
            assert torch.equal(ask.tensors[GROWN], rows[2:])
        moved = {"parameters": ask.tensors["parameters"] + 1}
        state = flow.send(Total({**ask.tensors, **moved}, 1.0, 1, 1))
        assert isinstance(state, State) and state.round == t + 1
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    assert GROWN not in end.value.value.tensors


def test_the_static_branch_travels_where_a_distance_is_kept() -> None:
    stage = Stage("gm")
    stage.run(rounds=3)
    assert all("anchor" in ask.tensors for ask in stage.asks)
    assert [GROWN in ask.tensors for ask in stage.asks] == [False, False, True]


def test_a_stage_cut_in_any_phase_goes_on_to_the_same_bits() -> None:
    kept: list[State] = []
    stage = Stage("gm")
    whole = stage.run(keep=kept.append, rounds=4)
    assert len(kept) == 5
    for state in kept:
        assert same_bits(stage.run(state, rounds=4).tensors, whole.tensors)


@pytest.mark.parametrize(
    ("rounds", "settings"),
    [(1, {"consistency": 0}), (1, {"distance": 0}), (3, {"confident": 0.1}), (3, {"preset": "full"})],
)
def test_every_setting_changes_what_is_learned(rounds: int, settings: dict[str, Any]) -> None:
    one = Stage("gm", beta=0.5).run(rounds=rounds).tensors["parameters"]
    other = Stage("gm", beta=0.5, **settings).run(rounds=rounds).tensors["parameters"]
    assert torch.isfinite(other).all() and not torch.equal(one, other)


def test_exemplars_are_for_those_who_have_them() -> None:
    stage = Stage("gm", preset="full")
    assert stage.p == Gm(exemplars=True, preset="full")
    stage.labelled["site-1"] = stage.labelled["site-1"][:0]
    end = stage.run(rounds=3)
    assert torch.isfinite(end.tensors["parameters"]).all()
