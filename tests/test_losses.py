"""Each loss against a literal loop over the printed equation, its derivative, and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from asterism.losses import known_class_loss, model_contrastive_loss, prototype_contrastive_loss
from asterism.seeds import generator

TAU = 0.07
Sizes = tuple[int, int, int, int]  # samples, prototypes, width, seed
sizes = st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000))
temperatures = st.floats(0.05, 5)


def drawn(size: Sizes, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Random z, labels and prototypes."""
    n, c, d, seed = size
    rng = generator(seed, "loss test")
    z = torch.randn(n, d, generator=rng, dtype=torch.float64)
    prototypes = torch.randn(c, d, generator=rng, dtype=torch.float64)
    return z.to(dtype), torch.randint(c, (n,), generator=rng), prototypes.to(dtype)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def literal_contrast(z: Tensor, labels: Tensor, prototypes: Tensor, tau: float) -> float:
    """Eq. 4 with its logarithm and cosines, sample by sample and term by term."""
    samples, rows, y = z.tolist(), prototypes.tolist(), labels.tolist()
    total = 0.0
    for i, sample in enumerate(samples):
        below = sum(math.exp(cosine(sample, row) / tau) for row in rows)
        for j, other in enumerate(samples):
            if y[j] != y[i]:
                below += math.exp(cosine(sample, other) / tau)
        total -= math.log(math.exp(cosine(sample, rows[y[i]]) / tau) / below)
    return total / len(samples)


def literal_cross_entropy(z: Tensor, labels: Tensor, prototypes: Tensor) -> float:
    total = 0.0
    for sample, label in zip(z.tolist(), labels.tolist(), strict=True):
        logits = [dot(sample, row) for row in prototypes.tolist()]
        total -= logits[label] - math.log(sum(math.exp(value) for value in logits))
    return total / len(z)


def literal_model_contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> float:
    total = 0.0
    for own, other, previous in zip(z.tolist(), near.tolist(), far.tolist(), strict=True):
        towards = math.exp(cosine(own, other) / temperature)
        away = math.exp(cosine(own, previous) / temperature)
        total -= math.log(towards / (towards + away))
    return total / len(z)


def gradients(loss: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in inputs]
    return list(torch.autograd.grad(loss(*leaves), leaves))


@given(sizes, temperatures)
@settings(max_examples=60, deadline=None)
def test_prototype_contrast_equals_the_double_loop(size: Sizes, tau: float) -> None:
    z, labels, prototypes = drawn(size)
    expected = literal_contrast(z, labels, prototypes, tau)
    assert float(prototype_contrastive_loss(z, labels, prototypes, tau)) == pytest.approx(expected, abs=1e-9)


@given(sizes, st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_known_class_loss_is_cross_entropy_plus_weighted_contrast(size: Sizes, eta: float) -> None:
    z, labels, prototypes = drawn(size)
    expected = literal_cross_entropy(z, labels, prototypes) + eta * literal_contrast(z, labels, prototypes, TAU)
    assert float(known_class_loss(z, labels, prototypes, eta, TAU)) == pytest.approx(expected, abs=1e-9)


@given(sizes, temperatures)
@settings(max_examples=60, deadline=None)
def test_model_contrast_equals_the_loop(size: Sizes, temperature: float) -> None:
    z, _, _ = drawn(size)
    near, far = drawn((size[0], 1, size[2], size[3] + 1))[0], drawn((size[0], 1, size[2], size[3] + 2))[0]
    expected = literal_model_contrast(z, near, far, temperature)
    assert float(model_contrastive_loss(z, near, far, temperature)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("size", [(5, 3, 4, 0), (1, 3, 2, 1), (6, 1, 3, 2), (4, 5, 2, 3)])
def test_derivatives_agree_with_finite_differences(size: Sizes) -> None:
    z, labels, prototypes = drawn(size)
    near, far = drawn((*size[:3], 90))[0], drawn((*size[:3], 91))[0]
    for value in (z, prototypes, near, far):
        value.requires_grad_()
    check = torch.autograd.gradcheck
    assert check(lambda a, b: prototype_contrastive_loss(a, labels, b, 0.3), (z, prototypes))
    assert check(lambda a, b: known_class_loss(a, labels, b, 0.4, 0.3), (z, prototypes))
    assert check(lambda a, b, c: model_contrastive_loss(a, b, c, 0.5), (z, near, far))


@given(sizes, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_order_of_samples_and_of_classes_changes_nothing(size: Sizes, random: object) -> None:
    z, labels, prototypes = drawn(size)
    rng = generator(size[3], "order", repr(random))
    samples, classes = torch.randperm(size[0], generator=rng), torch.randperm(size[1], generator=rng)
    renamed = classes.argsort()[labels]  # where each class's prototype went
    before = known_class_loss(z, labels, prototypes, 0.1, TAU)
    after = known_class_loss(z[samples], renamed[samples], prototypes[classes], 0.1, TAU)
    torch.testing.assert_close(before, after)


def test_a_silent_zero_would_be_noticed() -> None:
    z, labels, prototypes = drawn((8, 4, 5, 3))
    assert prototype_contrastive_loss(z, labels, prototypes) > 0.5
    assert model_contrastive_loss(z, z.flip(0), z.roll(1, 0), 0.5) > 0.1
    for gradient in gradients(lambda a, b: prototype_contrastive_loss(a, labels, b, TAU), z, prototypes):
        assert gradient.norm() > 0.1
    (gradient,) = gradients(lambda a: model_contrastive_loss(a, z.flip(0), z.roll(1, 0), 0.5), z)
    assert gradient.norm() > 0.01


def test_descent_draws_samples_to_their_prototype_and_apart_from_other_classes() -> None:
    z, labels, prototypes = drawn((12, 3, 8, 5))
    z.requires_grad_()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(prototype_contrastive_loss(z, labels, prototypes, 0.5), z)
        z = (z - gradient).detach().requires_grad_()
    cosines = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(prototypes, dim=1).T
    assert (cosines.argmax(dim=1) == labels).all()


def test_model_contrast_draws_towards_the_global_model() -> None:
    z, near, far = (drawn((6, 1, 5, seed))[0] for seed in (1, 2, 3))
    (gradient,) = gradients(lambda a: model_contrastive_loss(a, near, far, 0.5), z)
    moved = z - 0.1 * gradient
    gap = torch.cosine_similarity(moved, near) - torch.cosine_similarity(moved, far)
    assert (gap > torch.cosine_similarity(z, near) - torch.cosine_similarity(z, far)).all()


def test_without_eta_it_is_cross_entropy_to_the_bit() -> None:
    z, labels, prototypes = drawn((9, 4, 6, 1), torch.float32)
    loss = known_class_loss(z, labels, prototypes, 0.0, TAU)
    assert torch.equal(loss, cross_entropy(z @ prototypes.T, labels))


def test_one_prototype_leaves_nothing_to_contrast() -> None:
    z, labels, prototypes = drawn((5, 1, 4, 8))
    loss, *both = (
        prototype_contrastive_loss(z, labels, prototypes),
        *gradients(lambda a, b: prototype_contrastive_loss(a, labels, b), z, prototypes),
    )
    assert float(loss) == 0.0
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in both)


def test_a_batch_of_one_class_is_contrasted_with_prototypes_only() -> None:
    z, _, prototypes = drawn((5, 3, 4, 9))
    labels = torch.full((5,), 2)
    cosines = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(prototypes, dim=1).T
    expected = cross_entropy(cosines / TAU, labels)
    torch.testing.assert_close(prototype_contrastive_loss(z, labels, prototypes), expected)


def test_a_class_absent_from_the_batch_is_only_pushed_away() -> None:
    z, _, prototypes = drawn((6, 3, 4, 11))
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    _, gradient = gradients(lambda a, b: prototype_contrastive_loss(a, labels, b, 0.5), z, prototypes)
    step = prototypes - 0.01 * gradient
    weights = torch.cosine_similarity(z[:, None], prototypes[2][None, None], dim=2).squeeze(1)
    moved = torch.cosine_similarity(z[:, None], step[2][None, None], dim=2).squeeze(1)
    assert gradient[2].norm() > 0
    assert moved.exp().mean() < weights.exp().mean()


def test_identical_samples_of_one_class_add_nothing_to_each_other() -> None:
    z, _, prototypes = drawn((1, 3, 4, 12))
    labels = torch.tensor([1])
    many = prototype_contrastive_loss(z.expand(7, -1), labels.expand(7), prototypes)
    torch.testing.assert_close(many, prototype_contrastive_loss(z, labels, prototypes))


def test_identical_samples_of_different_classes_stay_finite() -> None:
    z, labels, prototypes = torch.ones(4, 3), torch.tensor([0, 1, 2, 0]), torch.ones(3, 3)
    loss = prototype_contrastive_loss(z, labels, prototypes)
    # Every similarity is 1: a sample has three prototypes and its samples of other classes below the line.
    expected = (2 * math.log(3 + 2) + 2 * math.log(3 + 3)) / 4
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    for gradient in gradients(lambda a, b: prototype_contrastive_loss(a, labels, b), z, prototypes):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("zero", ["samples", "prototypes", "both"])
def test_zero_vectors_have_a_finite_gradient_of_ordinary_size(zero: str) -> None:
    z, labels, prototypes = drawn((5, 3, 4, 13), torch.float32)
    if zero != "prototypes":
        z[1] = z[3] = 0
    if zero != "samples":
        prototypes[0] = 0
    found = gradients(lambda a, b: known_class_loss(a, labels, b, 0.1, TAU), z, prototypes)
    found += gradients(lambda a: model_contrastive_loss(a, z, z.roll(1, 0), 0.5), z)
    assert all(torch.isfinite(gradient).all() and gradient.abs().max() < 100 for gradient in found)


@pytest.mark.parametrize("norm", [1e-15, 1e-6, 1e6, 1e15])
def test_contrasts_see_angles_not_norms(norm: float) -> None:
    z, labels, prototypes = drawn((5, 3, 4, 14), torch.float32)
    loss = prototype_contrastive_loss(z, labels, prototypes)
    torch.testing.assert_close(prototype_contrastive_loss(norm * z, labels, norm * prototypes), loss)
    moon = model_contrastive_loss(z, z.roll(1, 0), z.flip(0), 0.5)
    torch.testing.assert_close(model_contrastive_loss(norm * z, z.roll(1, 0), norm * z.flip(0), 0.5), moon)
    for gradient in gradients(lambda a, b: prototype_contrastive_loss(a, labels, b), norm * z, norm * prototypes):
        assert torch.isfinite(gradient).all()


def test_norms_past_the_range_of_float32_give_no_nan() -> None:
    z, labels, prototypes = drawn((5, 3, 4, 15), torch.float32)
    loss = prototype_contrastive_loss(1e30 * z, labels, prototypes)
    found = gradients(lambda a, b: prototype_contrastive_loss(a, labels, b), 1e30 * z, prototypes)
    assert all(torch.isfinite(value).all() for value in (loss, *found))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    z, labels, prototypes = drawn((6, 3, 8, 16), dtype)
    near = z.roll(1, 0)
    for loss, wide in [
        (prototype_contrastive_loss(z, labels, prototypes), prototype_contrastive_loss(z.float(), labels, prototypes)),
        (model_contrastive_loss(z, near, z, 0.5), model_contrastive_loss(z.float(), near.float(), z.float(), 0.5)),
    ]:
        assert loss.dtype == torch.float32
        assert torch.equal(loss, wide)
    assert known_class_loss(z, labels, prototypes, 0.1, TAU).dtype == torch.float32


def test_float64_stays_float64() -> None:
    z, labels, prototypes = drawn((3, 2, 4, 17))
    assert known_class_loss(z, labels, prototypes, 0.1, TAU).dtype == torch.float64
    assert model_contrastive_loss(z, z, z, 0.5).dtype == torch.float64
