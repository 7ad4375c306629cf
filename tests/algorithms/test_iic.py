"""Every term of IIC against literal loops over its definition, and what a stage of it does to the state."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from asterism.algorithms.iic import Iic, head_terms, novel_loss, pairs_divergence, split, target, views_divergence
from asterism.algorithms.labelled import given
from asterism.evaluation import Reading
from asterism.flow import State
from asterism.losses import unit
from asterism.transport import sinkhorn
from tests.contract.test_novel import KNOWN, Stage
from tests.synthetic import same_bits

LABELS = torch.tensor([0, 2])


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def divergence(p: list[float], q: list[float]) -> float:
    """½(KL(p‖q) + KL(q‖p)), entry by entry."""
    return sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 2


def literal_terms(one: Tensor, two: Tensor, known: Tensor, novel: Tensor, labels: list[int], p: Iic) -> list[float]:
    """Swapped prediction, divergence of known from novel images, divergence of the views: image by image."""
    n, rows = len(one) - len(labels), torch.cat([known, novel])
    cosines = [view @ rows.T for view in (one, two)]
    soft = [(view / p.temperature).softmax(dim=1).tolist() for view in cosines]
    swapped = apart = 0.0
    for source, other in ((0, 1), (1, 0)):
        assigned = sinkhorn(cosines[source][:n, len(known) :], p.epsilon, p.iterations).tolist()
        aims = [[0.0] * len(known) + row for row in assigned]
        aims += [[float(c == label) for c in range(len(rows))] for label in labels]
        for aim, predicted in zip(aims, soft[other], strict=True):
            swapped -= sum(a * math.log(b) for a, b in zip(aim, predicted, strict=True)) / len(one) / 2
        for i, j in product(range(n), range(n, len(one))):
            apart += divergence(soft[source][i], soft[source][j]) / n / len(labels) / 2
    together = 0.0
    for kind, columns in ((range(n), range(len(known), len(rows))), (range(n, len(one)), range(len(known)))):
        for i in kind:
            parts = [[view[i][c] for c in columns] for view in soft]
            together += divergence(*([value / sum(part) for value in part] for part in parts)) / len(kind)
    return [swapped, apart, together]


@pytest.mark.parametrize(("n", "novel"), [(4, 3), (1, 2), (2, 5), (3, 1)])
def test_the_terms_of_a_head_are_the_literal_sums(n: int, novel: int) -> None:
    one, two = unit(drawn(n + 2, 6)), unit(drawn(n + 2, 6, seed=1))
    known, rows, p = unit(drawn(3, 6, seed=2)), unit(drawn(novel, 6, seed=3)), Iic()
    swapped, apart, together = literal_terms(one, two, known, rows, LABELS.tolist(), p)
    found = head_terms(one, two, known, rows, LABELS, p)
    assert found[0].item() == pytest.approx(swapped)
    assert found[1].item() == pytest.approx(p.intra * together - p.inter * apart)
    assert apart > 0 and together >= 0


def test_divergence_of_all_pairs_is_the_double_loop_and_never_negative() -> None:
    p, q = drawn(4, 5).softmax(dim=1), drawn(3, 5, seed=1, scale=3).softmax(dim=1)
    expected = sum(divergence(a, b) for a, b in product(p.tolist(), q.tolist())) / 12
    assert pairs_divergence(p.log(), q.log()).item() == pytest.approx(expected)
    assert pairs_divergence(p[:1].log(), p[:1].log()).item() == pytest.approx(0, abs=1e-12)


def test_divergence_of_views_is_nothing_between_equal_ones() -> None:
    logits = drawn(4, 5)
    assert views_divergence(logits, logits + 3).item() == pytest.approx(0, abs=1e-12)
    assert views_divergence(logits, logits.flip(0)).item() > 0.1


def test_targets_are_novel_for_unlabelled_images_and_labels_for_labelled_ones() -> None:
    found = target(drawn(5, 7), LABELS, 4, Iic())
    assert torch.equal(found[:3, :4], torch.zeros(3, 4, dtype=torch.float64))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(5, dtype=torch.float64))
    assert found[3:].argmax(dim=1).tolist() == LABELS.tolist()


@pytest.mark.parametrize("labels", [LABELS, LABELS[:0]])
def test_the_loss_has_the_gradient_of_its_value(labels: Tensor) -> None:
    # The targets are constants for the gradient, so they must be so for finite differences too.
    p = Iic(epsilon=1e9, heads=2, overcluster=2)
    views = [drawn(3 + len(labels), 4, seed=seed).requires_grad_() for seed in (0, 1)]
    rows = [drawn(count, 4, seed=seed).requires_grad_() for seed, count in enumerate((2, 2, 4, 4), 2)]
    known = drawn(3, 4, seed=9)
    assert torch.autograd.gradcheck(lambda a, b, *heads: novel_loss(a, b, known, heads, labels, p), (*views, *rows))


def test_the_loss_of_several_heads_is_half_that_of_clustering_and_half_that_of_over_clustering() -> None:
    one, two, known = unit(drawn(5, 6)), unit(drawn(5, 6, seed=1)), unit(drawn(3, 6, seed=2))
    p, further = Iic(preset="full", heads=2, overcluster=2), drawn(2 + 4 + 4, 6, seed=4)
    heads = split(drawn(2, 6, seed=3), further, p)
    assert [len(rows) for rows in heads] == [2, 2, 4, 4]
    assert torch.equal(torch.cat(heads[1:]), further)
    terms = [head_terms(one, two, known, unit(rows), LABELS, p) for rows in heads]
    swapped, constraint = [float(term[0]) for term in terms], [float(term[1]) for term in terms]
    expected = (sum(swapped[:2]) / 2 + sum(swapped[2:]) / 2) / 2 + sum(constraint[:2]) / 2
    assert novel_loss(one, two, known, heads, LABELS, p).item() == pytest.approx(expected)


def test_lengths_of_features_and_rows_do_not_matter() -> None:
    one, two, known, novel = drawn(5, 6), drawn(5, 6, seed=1), drawn(3, 6, seed=2), drawn(2, 6, seed=3)
    value = novel_loss(one, two, known, [novel], LABELS, Iic())
    torch.testing.assert_close(novel_loss(3 * one, 7 * two, 2 * known, [9 * novel], LABELS, Iic()), value)


def test_full_has_the_heads_of_the_original() -> None:
    full = Iic.model_validate({"preset": "full"})
    assert (full.heads, full.overcluster, full.further_rows(20)) == (4, 5, 20 * (3 + 4 * 5))
    assert Iic().further_rows(20) == 0


def test_a_participant_is_given_one_random_half_of_its_known_images() -> None:
    site = Stage("iic").site("site-0")
    whole, half = site.share("known").indices.tolist(), given(site, 7, 0.5).indices.tolist()
    assert len(half) == len(whole) // 2 and set(half) < set(whole)
    assert given(site, 7, 0.5).indices.tolist() == half
    assert given(site, 8, 0.5).indices.tolist() != half
    assert given(site, 7, 1.0).indices.tolist() == whole
    assert len(given(site, 7, 0.0)) == 0


@pytest.mark.parametrize("preset", ["paper", "full"])
def test_after_every_round_novel_rows_and_the_joint_head_have_length_one(preset: str) -> None:
    states: list[State] = []
    stage = Stage("iic", preset=preset)
    end = stage.run(keep=states.append)
    layout = stage.tiny.worker.layout
    for state in [*states[1:], end]:
        rows = layout.head(state.tensors["parameters"])
        torch.testing.assert_close(rows[KNOWN:].norm(dim=1), torch.ones(2))
        joint = Reading.of(state.tensors, stage.tiny.worker.device).joint
        assert joint is not None
        torch.testing.assert_close(joint, unit(rows))
    assert ("companion" in states[-1].tensors) == (preset == "full") and "companion" not in end.tensors
    assert all("joint" not in ask.tensors for ask in stage.asks)


def test_heads_beside_the_model_learn_and_go_on_from_a_kept_state_to_the_same_bits() -> None:
    states: list[State] = []
    stage = Stage("iic", preset="full")
    end = stage.run(keep=states.append)
    assert not torch.equal(states[-1].tensors["companion"], states[-2].tensors["companion"])
    for state in states:
        assert same_bits(stage.run(state).tensors, end.tensors)


def test_participants_without_known_images_do_without_them() -> None:
    stage = Stage("iic")
    stage.labelled = {name: share[:0] for name, share in stage.labelled.items()}
    without = stage.run()
    assert all(math.isfinite(loss) for loss in stage.losses)
    given_none = Stage("iic", known_share=0.0)
    assert same_bits(replace(given_none.run()).tensors, without.tensors)
