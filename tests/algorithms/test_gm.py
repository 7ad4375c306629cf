from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from asterism.algorithms.discover import Discovery
from asterism.algorithms.gm import Gm, branch_distance, unification_loss
from asterism.algorithms.screen import Screening
from asterism.algorithms.stage import Plan
from asterism.flow import State, Sum, Total
from asterism.losses import consistency_loss, pairwise_loss, same_ranking, two_view_loss
from tests.contract.test_novel import Stage
from tests.synthetic import same_bits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_unification(logits: Tensor, seen: Tensor, confident: float) -> float:
    """Cross entropy of the surest samples to C_L plus what another model sees, one sample after the other."""
    sure = torch.softmax(seen, dim=1).max(dim=1).values.tolist()
    surest = sorted(range(len(sure)), key=lambda i: -sure[i])[: max(1, round(confident * len(sure)))]
    known = logits.shape[1] - seen.shape[1]
    losses = [-float(torch.log_softmax(logits[i], dim=0)[known + int(seen[i].argmax())]) for i in surest]
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("samples", "confident"), [(1, 0.5), (2, 0.01), (7, 0.5), (6, 1.0)])
def test_unification_is_cross_entropy_of_the_surest_pseudo_labels(samples: int, confident: float) -> None:
    logits, seen = drawn(samples, 6), drawn(samples, 2, seed=2)
    found = unification_loss(logits, seen, confident)
    assert found.item() == pytest.approx(literal_unification(logits, seen, confident))
    assert found > 0


def test_unification_has_the_gradient_of_its_value_and_none_to_the_labels() -> None:
    logits, seen = drawn(5, 4).requires_grad_(), drawn(5, 2, seed=2)
    assert torch.autograd.gradcheck(lambda x: unification_loss(x, seen, 0.6), logits)
    seen.requires_grad_()
    unification_loss(logits, seen, 0.6).backward()  # type: ignore[no-untyped-call]
    assert seen.grad is None


def test_unification_with_one_novel_class_names_every_sample_by_it() -> None:
    logits = drawn(4, 3)
    expected = -torch.log_softmax(logits, dim=1)[:, 2].mean()
    torch.testing.assert_close(unification_loss(logits, drawn(4, 1, seed=1), 1.0), expected)


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
        Plan(3, Discovery(classes=2), Screening()),
    )  # fmt: skip
    state = next(flow)
    assert isinstance(state, State) and len(state.classes) == 4
    for t in range(3):
        ask = flow.send(None)
        assert isinstance(ask, Sum) and ask.task == "gm" and ask.options["frozen"] == 2
        # Without a distance to keep, m^L is of use in merging alone, as is the model that growing left.
        assert ("anchor" in ask.tensors) == ("grown" in ask.tensors) == (t == 2)
        if t == 2:
            layout = stage.tiny.worker.layout.with_rows(4)
            left, merging = (layout.head(tensors["parameters"]) for tensors in (state.tensors, ask.tensors))
            assert torch.equal(merging[:2], left[:2])
            # The novel rows point where growing left them, and are as long as the known ones.
            assert merging.norm(dim=1)[2:].mean() == pytest.approx(float(left.norm(dim=1)[:2].mean()))
            torch.testing.assert_close(normalize(merging, dim=1), normalize(left, dim=1))
            assert torch.equal(ask.tensors["grown"], ask.tensors["parameters"])
        moved = {"parameters": ask.tensors["parameters"] + 1}
        state = flow.send(Total({**ask.tensors, **moved}, 1.0, 1, 1))
        assert isinstance(state, State) and state.round == t + 1
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    assert "grown" not in end.value.value.tensors


def test_the_static_branch_travels_where_a_distance_is_kept() -> None:
    stage = Stage("gm")
    stage.run(rounds=3)
    assert all("anchor" in ask.tensors for ask in stage.asks)
    assert ["grown" in ask.tensors for ask in stage.asks] == [False, False, True]


def test_a_stage_cut_in_any_phase_goes_on_to_the_same_bits() -> None:
    kept: list[State] = []
    stage = Stage("gm")
    whole = stage.run(keep=kept.append, rounds=4)
    assert len(kept) == 5
    for state in kept:
        assert same_bits(stage.run(state, rounds=4).tensors, whole.tensors)


@pytest.mark.parametrize(
    ("rounds", "settings"),
    [(1, {"consistency": 5}), (1, {"distance": 0}), (3, {"confident": 0.1}), (3, {"preset": "full"})],
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
