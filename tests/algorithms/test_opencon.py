"""Every part of OpenCon against literal loops over its definition, and what a stage of it does to the state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asterism.algorithms.moving import SUMS, following, turned_to
from asterism.algorithms.opencon import OpenCon, novel_loss, pseudo_labels, quantile
from asterism.flow import State, Total
from asterism.losses import label_contrastive_loss, prior_divergence, unit
from tests.contract.test_novel import KNOWN, Stage
from tests.synthetic import same_bits

LABELS = torch.tensor([0, 2, 2])


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def literal_contrast(z: Tensor, labels: list[int], temperature: float, chosen: list[bool]) -> float:
    """Image by image: the mean over its likes of −log of their share among the chosen others."""
    each = list[float]()
    for i in (i for i, is_chosen in enumerate(chosen) if is_chosen):
        others = {j: math.exp(float(z[i] @ z[j]) / temperature) for j in range(len(z)) if chosen[j] and j != i}
        alike = [value for j, value in others.items() if labels[j] == labels[i]]
        each.append(sum(-math.log(v / sum(others.values())) for v in alike) / len(alike) if alike else 0.0)
    return sum(each) / len(each) if each else 0.0


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 99), st.data())
def test_contrast_is_the_literal_double_loop(images: int, classes: int, seed: int, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images)) * 2
    chosen = data.draw(st.lists(st.booleans(), min_size=images, max_size=images)) * 2
    z = unit(drawn(2 * images, 4, seed=seed))
    found = label_contrastive_loss(z, torch.tensor(labels), 0.4, torch.tensor(chosen))
    assert found.item() == pytest.approx(literal_contrast(z, labels, 0.4, chosen), abs=1e-12)


def test_contrast_of_views_is_the_cross_entropy_of_finding_the_other_view() -> None:
    z, pairs = unit(drawn(6, 4)), torch.arange(3).repeat(2)
    logits = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([3, 4, 5, 0, 1, 2]))
    torch.testing.assert_close(label_contrastive_loss(z, pairs, 0.5), expected)


def test_contrast_of_nothing_or_of_one_image_is_zero_with_a_gradient_of_zero() -> None:
    for images, chosen in ((3, torch.zeros(6, dtype=torch.bool)), (1, None)):
        z = unit(drawn(2 * images, 4)).requires_grad_()
        loss = label_contrastive_loss(z, torch.arange(images).repeat(2), 0.1, chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0 and z.grad is not None and not z.grad.any()


@pytest.mark.parametrize("at", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_quantile_is_the_one_of_numpy(at: float, count: int) -> None:
    values = drawn(count)
    assert quantile(values, at).item() == pytest.approx(np.quantile(values.numpy(), at))


def test_novel_like_are_images_less_like_known_prototypes_than_most_labelled_ones() -> None:
    similar, n, known = drawn(9, 5), 6, 3
    scores = [(row - row.mean()) / row.std(ddof=1) for row in similar.numpy()]
    largest = [float(row[:known].max()) for row in scores]
    bar = float(np.quantile(largest[n:], 0.3))
    labels, novel = pseudo_labels(similar, n, known, 0.3)
    assert novel.tolist() == [score < bar for score in largest[:n]]
    expected = [
        known + int(row[known:].argmax()) if score < bar else int(row.argmax())
        for row, score in zip(similar[:n], largest, strict=False)
    ]
    assert labels.tolist() == expected


def test_without_labelled_images_all_are_novel() -> None:
    labels, novel = pseudo_labels(drawn(4, 5) + torch.tensor([9.0, 0, 0, 0, 0]), 4, 3, 0.3)
    assert novel.all() and (labels >= 3).all()


def test_equal_similarities_are_no_division_by_zero() -> None:
    labels, novel = pseudo_labels(torch.ones(5, 4), 3, 2, 0.3)
    assert not novel.any() and labels.tolist() == [0, 0, 0]


def test_divergence_from_the_prior_is_the_literal_sum_and_finite_where_a_class_cannot_be() -> None:
    logits, prior = drawn(5, 3), torch.tensor([1.0, 2.0, 5.0])
    mean = logits.softmax(dim=1).mean(dim=0).tolist()
    expected = sum(m * math.log(m / q) for m, q in zip(mean, (1 / 8, 2 / 8, 5 / 8), strict=True))
    assert prior_divergence(logits, prior).item() == pytest.approx(expected)
    impossible = prior_divergence(logits, torch.tensor([0.0, 1.0, 1.0]))
    assert math.isfinite(impossible.item()) and impossible > prior_divergence(logits, prior)
    assert prior_divergence(torch.tensor([[-500.0, 0.0, 0.0]]), torch.tensor([0.0, 1.0, 1.0])).item() == 0


def literal_following(
    prototypes: Tensor, z: Tensor, labels: list[int], moves: list[bool], order: list[int], momentum: float, each: bool
) -> Tensor:
    """One image after the other; length 1 after ``each`` of them, or at the end alone."""
    found = prototypes.clone()
    for i in order:
        if moves[i]:
            moved = momentum * found[labels[i]] + (1 - momentum) * z[i]
            found[labels[i]] = moved / moved.norm() if each else moved
    return unit(found)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 99), st.sampled_from([0.0, 0.9]), st.data())
def test_prototypes_follow_a_batch_as_they_would_image_by_image(
    images: int, classes: int, seed: int, momentum: float, data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images))
    moves = data.draw(st.lists(st.booleans(), min_size=images, max_size=images))
    order = data.draw(st.permutations(range(images)))
    places = torch.empty(images, dtype=torch.int64)
    places[torch.tensor(order)] = torch.arange(images)
    prototypes, z = unit(drawn(classes, 5, seed=seed)), unit(drawn(images, 5, seed=seed + 1))
    found, counts = following(prototypes, z, torch.tensor(labels), torch.tensor(moves), places, momentum)
    expected = literal_following(prototypes, z, labels, moves, order, momentum, each=False)
    torch.testing.assert_close(found, expected)
    assert counts.tolist() == [
        sum(m for m, label in zip(moves, labels, strict=True) if label == c) for c in range(classes)
    ]
    still = counts == 0
    assert torch.equal(found[still], prototypes[still])


def test_length_once_a_batch_leads_to_where_length_once_an_image_leads() -> None:
    prototypes, direction = unit(drawn(1, 20)), unit(drawn(1, 20, seed=1))
    z = unit(direction + 0.15 * drawn(40, 20, seed=2))
    order, labels, moves = list(range(40)), [0] * 40, [True] * 40
    found, _ = following(prototypes, z, torch.tensor(labels), torch.tensor(moves), torch.arange(40), 0.9)
    literal = literal_following(prototypes, z, labels, moves, order, 0.9, each=True)
    before, apart = float(prototypes[0] @ literal[0]), float(found[0] @ literal[0])
    assert before < 0.6 and apart > 0.99


def test_the_server_turns_prototypes_to_where_images_moved_them_and_leaves_the_others() -> None:
    before, one, two = torch.eye(3), unit(torch.rand(3, 3)), unit(torch.rand(3, 3))
    sums = torch.tensor([[5.0], [1.0], [0.0]]) * one + torch.tensor([[1.0], [0.0], [0.0]]) * two
    found = turned_to(sums, before)
    torch.testing.assert_close(found[0], (5 * one[0] + two[0]) / (5 * one[0] + two[0]).norm())
    torch.testing.assert_close(found[1], one[1])
    assert torch.equal(found[2], before[2])


def views(labelled: int) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(4 + labelled, 6), drawn(4 + labelled, 6, seed=1), unit(drawn(5, 6, seed=2))


@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_the_loss_is_the_weighted_sum_of_its_four_terms(ramp: float) -> None:
    one, two, prototypes = views(len(LABELS))
    loss, called, novel_like = novel_loss(one, two, LABELS, prototypes, 3, torch.tensor(ramp), OpenCon())
    a, b = unit(one), unit(two)
    pseudo, novel = pseudo_labels(a @ prototypes.T, 4, 3, 0.3)
    free, tied = torch.cat([a[:4], b[:4]]), torch.cat([a[4:], b[4:]])
    expected = literal_contrast(free, [0, 1, 2, 3] * 2, 0.4, [True] * 8)
    expected += 0.2 * literal_contrast(tied, LABELS.tolist() * 2, 0.1, [True] * 6)
    expected += 0.1 * ramp * literal_contrast(free, pseudo.tolist() * 2, 0.7, novel.tolist() * 2)
    prior = torch.tensor([0.0, 0, 0, 1, 1])
    expected += 0.05 * float(prior_divergence(10 * a[:4] @ prototypes.T, prior))
    assert loss.item() == pytest.approx(expected)
    assert called.tolist() == [*pseudo.tolist(), *LABELS.tolist()]
    assert novel_like.item() == novel.double().mean()


@pytest.mark.parametrize("labels", [LABELS, LABELS[:0]])
def test_the_loss_has_the_gradient_of_its_value(labels: Tensor) -> None:
    one, two, prototypes = views(len(labels))
    ramp = torch.tensor(1.0)
    inputs = one.requires_grad_(), two.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: novel_loss(a, b, labels, prototypes, 3, ramp, OpenCon())[0], inputs)


@pytest.mark.parametrize("preset", ["paper", "full"])
def test_a_stage_moves_prototypes_and_reads_its_novel_rows_from_them(preset: str) -> None:
    states: list[State] = []
    stage = Stage("opencon", preset=preset)
    end = stage.run(keep=states.append)
    layout = stage.tiny.worker.layout
    for state in states[1:]:
        rows, prototypes = layout.head(state.tensors["parameters"]), state.tensors["prototypes"]
        torch.testing.assert_close(prototypes.norm(dim=1), torch.ones(4))
        torch.testing.assert_close(rows[KNOWN:].norm(dim=1), torch.ones(2))
        assert prototypes.shape == (4, 128 if preset == "full" else layout.features)
        assert torch.equal(rows[KNOWN:], prototypes[KNOWN:]) == (preset == "paper")
        assert SUMS not in state.tensors
    assert not torch.equal(states[1].tensors["prototypes"], states[2].tensors["prototypes"])
    assert {"prototypes", "companion"}.isdisjoint(end.tensors) and "joint" in end.tensors
    asked = ["opencon", "opencon-rows"] if preset == "full" else ["opencon"]
    assert [ask.task for ask in stage.asks if ask.task.startswith("opencon")] == asked * 2


def test_full_goes_on_from_a_kept_state_to_the_same_bits() -> None:
    states: list[State] = []
    stage = Stage("opencon", preset="full")
    end = stage.run(keep=states.append)
    assert not torch.equal(states[-1].tensors["companion"], states[-2].tensors["companion"])
    for state in states:
        assert same_bits(stage.run(state).tensors, end.tensors)


def test_the_servers_mean_counts_every_image_once() -> None:
    stage = Stage("opencon")
    stage.run()
    ask = next(ask for ask in stage.asks if ask.task == "opencon")
    parts = list[Total]()
    for name in stage.novel:
        answer = stage.answer(replace(ask, participants=(name,)))
        assert isinstance(answer, Total)
        parts.append(answer)
    known = [part.tensors[SUMS][:KNOWN].norm(dim=1).sum().item() for part in parts]
    # 8 unlabelled images each, one epoch: as many labelled ones were drawn, and each moved its class once.
    assert known == pytest.approx([8.0] * 3)


@pytest.mark.parametrize("preset", ["paper", "full"])
def test_a_round_in_which_nobody_answers_leaves_prototypes_where_they_are(preset: str) -> None:
    states: list[State] = []
    stage = Stage("opencon", preset=preset)
    answer = stage.answer
    missed = Total({}, weight=0.0, replies=0, contributors=0)
    stage.answer = lambda ask: missed if ask.version.round == 1 else answer(ask)  # type: ignore[method-assign]
    stage.run(keep=states.append)
    assert same_bits({"kept": states[1].tensors["prototypes"]}, {"kept": states[2].tensors["prototypes"]})


def test_participants_without_known_images_do_without_them() -> None:
    stage, given_none = Stage("opencon"), Stage("opencon", known_share=0.0)
    stage.labelled = {name: share[:0] for name, share in stage.labelled.items()}
    without = stage.run()
    assert all(math.isfinite(loss) for loss in stage.losses)
    assert same_bits(given_none.run().tensors, without.tensors)
