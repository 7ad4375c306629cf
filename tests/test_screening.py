"""Scores, thresholds and what they are worth, against literal loops, scikit-learn and the central computation."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from asterism import screening
from asterism.screening import SCORES, Detection, Reference, edges, histogram
from asterism.seeds import generator

COARSE = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=30).map(torch.tensor)  # full of ties
FINE = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=60).map(torch.tensor)


def vectors(count: int, width: int = 5, *, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=generator(seed, "vectors"))


def known_things() -> Reference:
    precision = torch.linalg.inv(torch.eye(5) + 0.1)
    return Reference(vectors(3, seed=2), 2.0, vectors(12, seed=3), 4, vectors(3, seed=4), precision)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def unit(a: list[float]) -> list[float]:
    return [x / math.sqrt(dot(a, a)) for x in a]


def literal(name: str, z: list[float], known: Reference) -> float:
    """Each score of one image as the paper that proposed it writes it."""
    prototypes = known.prototypes.tolist()
    if name == "cosine":
        return max(cosine(z, p) for p in prototypes)
    if name == "max-logit":
        return max(dot(z, p) for p in prototypes)
    if name == "energy":
        return known.temperature * math.log(sum(math.exp(dot(z, p) / known.temperature) for p in prototypes))
    if name == "neighbour":
        return -sorted(math.dist(unit(z), unit(other)) for other in known.bank.tolist())[known.neighbours - 1]
    away = [[x - m for x, m in zip(unit(z), mean, strict=True)] for mean in known.means.tolist()]
    return -min(dot(a, [dot(a, column) for column in known.precision.T.tolist()]) for a in away)


@pytest.mark.parametrize("name", SCORES)
def test_score_equals_its_definition(name: str) -> None:
    z, known = vectors(20), known_things()
    expected = torch.tensor([literal(name, row, known) for row in z.tolist()])
    torch.testing.assert_close(SCORES[name].of(z, known), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("count", [0, 1])
def test_score_takes_no_image_and_one(name: str, count: int) -> None:
    assert SCORES[name].of(vectors(count), known_things()).shape == (count,)


@pytest.mark.parametrize("name", SCORES)
def test_score_of_zeros_is_a_number_and_leaves_its_inputs(name: str) -> None:
    known, z = known_things(), torch.zeros(2, 5)
    for given_ in (known.prototypes, known.bank):
        given_[0] = 0
    copies = [value.clone() for value in (known.prototypes, known.bank, known.means, known.precision)]
    assert SCORES[name].of(z, known).isfinite().all()
    for value, copy in zip((known.prototypes, known.bank, known.means, known.precision), copies, strict=True):
        assert torch.equal(value, copy)
    assert not z.any()


@pytest.mark.parametrize("name", SCORES)
def test_what_lies_on_something_known_scores_higher_than_its_opposite(name: str) -> None:
    known = vectors(1)
    reference = Reference(known, 1.0, known, 1, torch.nn.functional.normalize(known), torch.eye(5))
    near, far = SCORES[name].of(torch.cat([known, -known]), reference)
    assert near > far


def test_prototype_of_zeros_is_like_nothing() -> None:
    assert screening.largest_cosine(vectors(3), torch.zeros(2, 5)).tolist() == [0.0, 0.0, 0.0]


def test_a_bank_of_fewer_than_k_gives_its_farthest_and_an_empty_one_the_greatest_distance() -> None:
    z, bank = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert screening.neighbour_similarity(z, bank, 10).item() == pytest.approx(-math.sqrt(2))
    assert screening.neighbour_similarity(z, bank[:0], 10).item() == -2.0


def test_novel_is_strictly_below_the_threshold() -> None:
    at = torch.tensor(0.5)
    scores = torch.stack([torch.nextafter(at, torch.tensor(0.0)), at, torch.nextafter(at, torch.tensor(1.0))])
    assert screening.is_novel(scores, 0.5).tolist() == [True, False, False]


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.integers(0, 999))
@settings(max_examples=50, deadline=None)
def test_summed_statistics_of_sites_equal_the_central_ones(images: int, classes: int, sites: int, seed: int) -> None:
    z = vectors(images, seed=seed)
    rng = generator(seed, "labels")
    labels = torch.randint(classes, (images,), generator=rng)
    place = torch.randint(sites, (images,), generator=rng)
    parts = [screening.class_statistics(z[place == k], labels[place == k], classes) for k in range(sites)]
    total = {name: sum((part[name] for part in parts), torch.zeros(())) for name in parts[0]}
    for mine, central in zip(
        screening.discriminant(total, 0.3),
        screening.discriminant(screening.class_statistics(z, labels, classes), 0.3),
        strict=True,
    ):
        torch.testing.assert_close(mine, central, atol=1e-5, rtol=1e-5)


def test_discriminant_is_the_pooled_covariance_of_centred_images() -> None:
    z, labels = vectors(60), torch.arange(60) % 4
    means, precision = screening.discriminant(screening.class_statistics(z, labels, 4), 0.25)
    expected = torch.stack([z[labels == c].mean(dim=0) for c in range(4)])
    centred = z - expected[labels]
    within = centred.T @ centred / (60 - 4)
    shrunk = 0.75 * within + 0.25 * within.trace() / 5 * torch.eye(5)
    torch.testing.assert_close(means, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(precision, torch.linalg.inv(shrunk), atol=1e-4, rtol=1e-4)


def test_a_class_without_images_gets_no_mean_and_single_images_no_infinity() -> None:
    total = screening.class_statistics(vectors(2), torch.tensor([0, 3]), 5)
    means, precision = screening.discriminant(total, 0.3)
    assert torch.equal(means, vectors(2)) and precision.isfinite().all()


@given(COARSE, COARSE)
@settings(max_examples=80, deadline=None)
def test_auroc_equals_scikit_learn_and_the_count_of_pairs(known: Tensor, novel: Tensor) -> None:
    truth = [1] * len(known) + [0] * len(novel)
    mine = screening.auroc(known, novel)
    assert mine == pytest.approx(roc_auc_score(truth, torch.cat([known, novel]).numpy()))
    won = [(k > n) + (k == n) / 2 for k in known.tolist() for n in novel.tolist()]
    assert mine == pytest.approx(sum(won) / len(won))


def test_auroc_needs_both_kinds() -> None:
    assert screening.auroc(torch.ones(3), torch.empty(0)) is None
    assert screening.auroc(torch.empty(0), torch.empty(0)) is None


@given(COARSE, st.floats(0.001, 0.999))
@settings(max_examples=100, deadline=None)
def test_calibrated_threshold_is_the_largest_that_keeps_the_promise(scores: Tensor, false_alarm: float) -> None:
    r = screening.calibrated_threshold(scores, false_alarm)
    n = len(scores)
    assert int((scores < r).sum()) <= false_alarm * n + 1e-6
    assert int((scores <= r).sum()) > false_alarm * n - 1e-6
    assert r in scores.tolist()


def test_calibrated_threshold_counts_whole_images() -> None:
    scores = torch.arange(100.0)
    assert screening.calibrated_threshold(scores, 0.29) == 29.0  # 0.29 · 100 is 28.999… in floats


def test_calibrated_rate_holds_on_images_it_has_not_seen() -> None:
    scores = vectors(20_000, 1).flatten()
    r = screening.calibrated_threshold(scores[:4000], 0.05)
    error = math.sqrt(0.05 * 0.95 * (1 / 4000 + 1 / 16_000))
    assert float((scores[4000:] < r).float().mean()) == pytest.approx(0.05, abs=4 * error)


@given(FINE, st.floats(0.001, 0.999))
@settings(max_examples=80, deadline=None)
def test_threshold_from_counts_is_the_exact_one_to_a_bin(scores: Tensor, false_alarm: float) -> None:
    bounds = edges(SCORES["cosine"])
    counts = histogram(scores[::2], bounds) + histogram(scores[1::2], bounds)
    r = screening.histogram_threshold(counts, bounds, false_alarm)
    width = 2 / screening.BINS + 1e-9
    assert int((scores < r - width).sum()) <= false_alarm * len(scores) + 1e-6
    assert int((scores < r + width).sum()) >= false_alarm * len(scores) - 1e-6


@pytest.mark.parametrize("name", SCORES)
def test_histogram_counts_every_score_once_between_its_edges(name: str) -> None:
    score = SCORES[name]
    bounds = edges(score)
    assert len(bounds) == screening.BINS + 1 and (bounds.diff() > 0).all()
    assert bounds[0] == pytest.approx(score.low) and bounds[-1] == pytest.approx(score.high)
    inside = score.low + (score.high - score.low) * torch.rand(500, generator=generator(1, "scores")).double()
    counts = histogram(inside, bounds)
    literal_counts = [int(((inside >= low) & (inside < high)).sum()) for low, high in pairwise(bounds)]
    assert counts.tolist() == literal_counts
    assert histogram(bounds[:-1], bounds).tolist() == [1] * screening.BINS  # a lower edge belongs to its bin
    beyond = histogram(torch.tensor([-math.inf, math.inf, -1e30, 1e30]), bounds)
    assert [float(beyond[0]), float(beyond[-1]), float(beyond.sum())] == [2, 2, 4]


@pytest.mark.parametrize(("name", "centre"), [("energy", 12.0), ("mahalanobis", -500.0), ("neighbour", -0.7)])
def test_histograms_are_fine_enough_for_the_auroc(name: str, centre: float) -> None:
    spread = abs(centre) / 10
    known, novel = centre + spread * vectors(400, 1).flatten(), centre - spread + spread * vectors(300, 1).flatten()
    bounds = edges(SCORES[name])
    binned = screening.histogram_auroc(histogram(known, bounds), histogram(novel, bounds))
    assert binned == pytest.approx(screening.auroc(known, novel), abs=2e-3)


def test_detection_counts_as_written() -> None:
    scores = torch.tensor([0.1, 0.2, 0.6, 0.3, 0.7, 0.8, 0.9])
    novel = torch.tensor([True, True, True, False, False, False, False])
    assert screening.detection(scores, novel, 0.5) == Detection(recall=2 / 3, precision=2 / 3, false_alarm=1 / 4)


def test_detection_says_nothing_where_there_is_nothing_to_count() -> None:
    nothing = torch.empty(0)
    assert screening.detection(nothing, nothing.bool(), 0.5) == Detection(None, None, None)
    assert screening.detection(torch.ones(2), torch.tensor([False, False]), 0.5) == Detection(None, None, 0.0)
