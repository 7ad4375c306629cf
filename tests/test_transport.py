"""Sinkhorn's assignments against the literal iteration, and what must hold of them at every limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asterism.transport import balanced, sinkhorn


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def literal(scores: Tensor, epsilon: float, iterations: int, classes: list[float], samples: list[float]) -> Tensor:
    """The plan scaled in turn to the masses of classes and samples, entry by entry."""
    plan = [[float(value) * mass for value in row] for row, mass in zip((scores / epsilon).exp(), samples, strict=True)]
    for _ in range(iterations):
        for j, mass in enumerate(classes):
            column = sum(row[j] for row in plan)
            for row in plan:
                row[j] *= mass / column
        for i, mass in enumerate(samples):
            plan[i] = [value * mass / sum(plan[i]) for value in plan[i]]
    return torch.tensor(plan, dtype=torch.float64)


@pytest.mark.parametrize(("n", "c"), [(1, 1), (1, 4), (4, 1), (3, 7), (20, 5)])  # with fewer samples than classes too
@pytest.mark.parametrize("iterations", [1, 3])
def test_it_is_the_literal_iteration_between_equal_masses(n: int, c: int, iterations: int) -> None:
    scores = drawn(n, c, scale=0.2)
    expected = literal(scores, 0.05, iterations, [1 / c] * c, [1 / n] * n) * n
    torch.testing.assert_close(sinkhorn(scores, 0.05, iterations), expected)


def test_it_is_the_literal_iteration_between_masses_of_any_kind() -> None:
    scores, classes, samples = drawn(5, 3), torch.tensor([3.0, 1.0, 6.0]), torch.tensor([1.0, 1.0, 2.0, 5.0, 1.0])
    expected = literal(scores, 0.5, 4, [0.3, 0.1, 0.6], [0.1, 0.1, 0.2, 0.5, 0.1])
    found = sinkhorn(scores, 0.5, 4, classes=classes, samples=samples)
    torch.testing.assert_close(found * (samples / samples.sum())[:, None].double(), expected)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 999), st.data())
def test_rows_are_distributions_and_classes_get_their_mass_in_the_limit(
    n: int, c: int, seed: int, data: st.DataObject
) -> None:
    masses = torch.tensor(data.draw(st.lists(st.floats(0.1, 5), min_size=c, max_size=c)), dtype=torch.float64)
    found = sinkhorn(drawn(n, c, seed=seed), 0.5, 500, classes=masses)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(found.mean(dim=0), masses / masses.sum(), atol=1e-4, rtol=1e-3)


def test_equal_scores_give_the_masses_of_the_classes() -> None:
    assert sinkhorn(torch.full((3, 4), 7.0), 0.05, 3).tolist() == [[0.25] * 4] * 3
    found = sinkhorn(torch.zeros(2, 3), 0.05, 3, classes=torch.tensor([1.0, 2.0, 5.0]))
    torch.testing.assert_close(found, torch.tensor([[0.125, 0.25, 0.625]] * 2))


def test_a_class_without_mass_gets_nothing_and_a_sample_without_mass_counts_for_nothing() -> None:
    scores = drawn(4, 3)
    found = sinkhorn(scores, 0.5, 50, classes=torch.tensor([1.0, 0.0, 1.0]), samples=torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert torch.equal(found[:, 1], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(found[:3], sinkhorn(scores[:3], 0.5, 50, classes=torch.tensor([1.0, 0.0, 1.0])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_that_would_overflow_an_exponential_are_no_matter(dtype: torch.dtype) -> None:
    found = sinkhorn(torch.tensor([[6e4, -6e4], [-6e4, 6e4]], dtype=dtype), 0.05, 3)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.eye(2))


def test_a_shift_of_a_sample_or_of_a_class_changes_nothing_in_the_limit() -> None:
    scores = drawn(6, 4)
    shifted = scores + drawn(6, 1, seed=1, scale=3) + drawn(1, 4, seed=2, scale=3)
    torch.testing.assert_close(sinkhorn(shifted, 0.5, 500), sinkhorn(scores, 0.5, 500), atol=1e-6, rtol=1e-6)


def test_no_gradient_runs_through_it() -> None:
    assert not sinkhorn(drawn(3, 2).requires_grad_(), 0.05, 3).requires_grad


@pytest.mark.parametrize(("n", "c", "iterations"), [(80, 64, 30), (128, 16, 10), (1, 5, 3), (7, 1, 2)])
def test_products_give_what_logarithms_give_for_cosines(n: int, c: int, iterations: int) -> None:
    cosines = drawn(n, c).clamp(-1, 1)
    found = balanced(cosines.float(), 1 / 25, iterations)
    torch.testing.assert_close(found.double(), sinkhorn(cosines.double(), 1 / 25, iterations), atol=1e-5, rtol=1e-4)
