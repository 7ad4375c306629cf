"""The losses of novel class learning against literal double loops over the printed equations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asterism.losses import distillation_loss, pairwise_loss, same_ranking, semantic_weighted_loss, semantic_weights


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def literal_swl(z: Tensor, prototypes: Tensor, tau: float) -> float:
    total = 0.0
    for sample in z.tolist():
        dots = [sum(a * b for a, b in zip(sample, p, strict=True)) / tau for p in prototypes.tolist()]
        largest = max(dots)
        powers = [math.exp(d - largest) for d in dots]
        for power, prototype in zip(powers, prototypes.tolist(), strict=True):
            total += power / sum(powers) * math.dist(sample, prototype)
    return total / len(z)


@pytest.mark.parametrize(("samples", "rows", "tau"), [(1, 1, 0.07), (5, 3, 0.07), (4, 7, 1.0), (30, 30, 0.5)])
def test_swl_is_the_double_sum_of_eq_9(samples: int, rows: int, tau: float) -> None:
    z, prototypes = drawn(samples, 6, scale=0.5), drawn(rows, 6, seed=1, scale=0.5)
    found = semantic_weighted_loss(z, prototypes, tau).item()
    assert found == pytest.approx(literal_swl(z, prototypes, tau), rel=1e-9)
    assert found > 0


def test_swl_has_the_gradient_of_its_value() -> None:
    z, prototypes = drawn(4, 3, scale=0.2).requires_grad_(), drawn(3, 3, seed=1, scale=0.2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: semantic_weighted_loss(a, b, 0.5), (z, prototypes))


def test_detached_swl_has_the_same_value_and_no_gradient_through_its_weights() -> None:
    z, prototypes = drawn(4, 3).requires_grad_(), drawn(2, 3, seed=1)
    assert torch.equal(semantic_weighted_loss(z, prototypes, detach=True), semantic_weighted_loss(z, prototypes))
    (through_distance,) = torch.autograd.grad(semantic_weighted_loss(z, prototypes, 1.0, detach=True), z)
    weights = semantic_weights(z, prototypes, 1.0).detach()
    away = z[:, None] - prototypes
    expected = (weights[:, :, None] * away / away.norm(dim=2, keepdim=True)).sum(dim=1) / len(z)
    torch.testing.assert_close(through_distance, expected.detach())


def test_swl_with_one_hot_weights_is_the_mean_distance_to_the_chosen_row() -> None:
    prototypes = torch.eye(3, dtype=torch.float64) * 50
    z = prototypes[[0, 2, 2]] + drawn(3, 3)
    expected = (z - prototypes[[0, 2, 2]]).norm(dim=1).mean()
    torch.testing.assert_close(semantic_weighted_loss(z, prototypes), expected)


@pytest.mark.parametrize("samples", [3, 40])  # past 25 rows a faster way to distances would give NaN here
def test_swl_of_a_sample_on_its_prototype_has_a_finite_gradient(samples: int) -> None:
    prototypes = torch.eye(samples).requires_grad_()
    z = torch.eye(samples).requires_grad_()
    semantic_weighted_loss(z, prototypes).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and prototypes.grad is not None
    assert torch.isfinite(z.grad).all() and torch.isfinite(prototypes.grad).all()


def test_swl_of_huge_features_is_finite() -> None:
    assert torch.isfinite(
        semantic_weighted_loss(drawn(4, 3, scale=1e4).float(), drawn(2, 3, seed=1, scale=1e4).float())
    )


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_weights_of_a_sample_sum_to_one(samples: int, rows: int, seed: int) -> None:
    weights = semantic_weights(drawn(samples, 4, seed=seed), drawn(rows, 4, seed=seed + 1))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(samples, dtype=torch.float64))


def test_pairwise_loss_is_the_double_sum_of_eq_11() -> None:
    p = drawn(6, 4).softmax(dim=1)
    same = same_ranking(drawn(6, 8, seed=2).relu(), top=2)
    total = 0.0
    for i in range(6):
        for j in range(6):
            together = float(p[i] @ p[j])
            total -= math.log(together) if same[i, j] else math.log(1 - together)
    assert pairwise_loss(p, same).item() == pytest.approx(total / 36)
    assert torch.autograd.gradcheck(lambda x: pairwise_loss(x.softmax(dim=1), same), drawn(6, 4).requires_grad_())


def test_pairwise_loss_of_certain_predictions_is_finite() -> None:
    certain = torch.eye(3)[[0, 0, 1]]
    assert torch.isfinite(pairwise_loss(certain, torch.zeros(3, 3)))


def literal_ranking(z: Tensor, top: int) -> list[list[bool]]:
    def largest(row: list[float]) -> set[int]:
        return set(sorted(range(len(row)), key=lambda i: (-row[i], i))[:top])

    sets = [largest(row) for row in z.tolist()]
    return [[a == b for b in sets] for a in sets]


@given(st.integers(1, 8), st.integers(1, 9), st.integers(0, 99), st.floats(0.1, 50))
def test_same_ranking_is_equality_of_top_feature_sets_ties_and_scales_included(
    samples: int, features: int, seed: int, scale: float
) -> None:
    z = drawn(samples, features, seed=seed).mul(2).round().relu()  # many ties, many zeros
    expected = literal_ranking(z, min(3, features))
    assert same_ranking(z, top=3).tolist() == expected
    assert same_ranking(z * scale, top=3).tolist() == expected


def test_distillation_is_zero_for_equal_logits_and_has_no_gradient_to_the_teacher() -> None:
    logits, teacher = drawn(5, 4).requires_grad_(), drawn(5, 4, seed=3).requires_grad_()
    assert distillation_loss(logits, logits).item() == pytest.approx(0, abs=1e-12)
    loss = distillation_loss(logits, teacher, temperature=2.0)
    soft = torch.log_softmax(teacher / 2, dim=1)
    expected = (soft.exp() * (soft - torch.log_softmax(logits / 2, dim=1))).sum(dim=1).mean() * 4
    torch.testing.assert_close(loss, expected)
    loss.backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    assert logits.grad is not None and logits.grad.abs().sum() > 0
