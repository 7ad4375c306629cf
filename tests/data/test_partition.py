from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.data.partition import (
    PARTITIONS,
    Ints,
    by_site,
    class_wise,
    client_wise,
    client_wise_with_prior,
    identical,
    largest_remainder,
    log_dirichlet,
)
from asterism.seeds import number

EQUAL_SIZES = ("client", "client-prior", "iid")
DRAWS = 20

label_sets = st.lists(st.integers(0, 6), max_size=120).map(lambda labels: np.array(labels, dtype=np.int64))
alphas = st.sampled_from([5e-324, 1e-6, 0.001, 0.1, 1.0, 1e6, 1e300])


def generator(*purpose: object) -> np.random.Generator:
    return np.random.default_rng(number(2023, "partition", *purpose))


def balanced(classes: int = 20, images: int = 500) -> Ints:
    return np.repeat(np.arange(classes), images)


def counted(labels: Ints, owners: Ints, participants: int) -> Ints:
    counts = np.zeros((participants, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (owners, labels), 1)
    return counts


def drawn(name: str, alpha: float, participants: int = 10) -> Ints:
    """Counts of ``DRAWS`` draws over 20 classes of 500 images, (draws × participants, classes)."""
    labels = balanced()
    owners = (PARTITIONS[name](labels, participants, alpha, generator(draw)) for draw in range(DRAWS))
    return np.concatenate([counted(labels, each, participants) for each in owners])


def classes_held(counts: Ints) -> Ints:
    """Classes that make at least one percent of a participant's images, of participants that have any."""
    counts = counts[counts.sum(axis=1) > 0]
    held: Ints = (counts >= 0.01 * counts.sum(axis=1, keepdims=True)).sum(axis=1)
    return held


@pytest.mark.parametrize("name", PARTITIONS)
@given(labels=label_sets, participants=st.integers(1, 12), alpha=alphas, seed=st.integers(0, 99))
def test_every_image_has_one_owner(name: str, labels: Ints, participants: int, alpha: float, seed: int) -> None:
    owners = PARTITIONS[name](labels, participants, alpha, generator(seed))
    assert owners.shape == labels.shape
    assert owners.dtype == np.int64
    assert ((owners >= 0) & (owners < participants)).all()


@pytest.mark.parametrize("name", PARTITIONS)
@given(labels=label_sets, participants=st.integers(1, 12), alpha=alphas)
def test_same_generator_gives_same_owners_and_leaves_labels_alone(
    name: str, labels: Ints, participants: int, alpha: float
) -> None:
    before = labels.copy()
    first, second = (PARTITIONS[name](labels, participants, alpha, generator()) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(labels, before)


@pytest.mark.parametrize("name", EQUAL_SIZES)
@given(labels=label_sets, participants=st.integers(1, 12), alpha=alphas)
def test_sizes_differ_by_at_most_one(name: str, labels: Ints, participants: int, alpha: float) -> None:
    owners = PARTITIONS[name](labels, participants, alpha, generator())
    assert np.ptp(np.bincount(owners, minlength=participants)) <= 1


@pytest.mark.parametrize("participants", [10, 20, 100])
@pytest.mark.parametrize("name", PARTITIONS)
def test_alpha_of_a_thousandth_runs_through(name: str, participants: int) -> None:
    labels = balanced(100, 500)
    owners = PARTITIONS[name](labels, participants, 0.001, generator())
    assert counted(labels, owners, participants).sum() == len(labels)


def test_alpha_of_a_thousandth_gives_nearly_every_class_to_one_participant() -> None:
    counts = counted(balanced(), class_wise(balanced(), 10, 0.001, generator()), 10)
    assert (counts.max(axis=0) > 490).mean() >= 0.9


@pytest.mark.parametrize("name", ["class", "client", "client-prior"])
def test_a_huge_alpha_is_close_to_iid(name: str) -> None:
    counts = counted(balanced(), PARTITIONS[name](balanced(), 10, 1e6, generator()), 10)
    assert np.abs(counts - 50).max() <= 3


def test_iid_mixes_every_class_everywhere() -> None:
    counts = counted(balanced(), identical(balanced(), 10, 1.0, generator()), 10)
    assert counts.min() > 20
    assert counts.max() < 90


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(("classes", "images", "participants"), [(1, 30, 7), (5, 3, 10), (4, 10, 1), (1, 1, 4)])
def test_few_classes_few_images_few_participants(name: str, classes: int, images: int, participants: int) -> None:
    labels = balanced(classes, images)
    counts = counted(labels, PARTITIONS[name](labels, participants, 0.1, generator()), participants)
    assert (counts.sum(axis=0) == images).all()


def test_class_numbers_may_have_gaps() -> None:
    labels = np.repeat([3, 80, 99], 40)
    with_gaps, without = (client_wise(each, 6, 0.1, generator()) for each in (labels, np.repeat([0, 1, 2], 40)))
    assert np.array_equal(with_gaps, without)


def test_which_images_of_a_class_go_where_is_drawn() -> None:
    owners = class_wise(balanced(1, 400), 4, 100.0, generator())
    assert (np.diff(owners) != 0).sum() > 100


def test_class_wise_has_the_measured_sizes() -> None:
    counts = drawn("class", 0.1)
    low, median, high = np.percentile(counts.sum(axis=1), [5, 50, 95])
    assert 200 < low < 480
    assert 850 < median < 1050
    assert 1600 < high < 2000
    assert np.percentile(classes_held(counts), [5, 50, 95]) == pytest.approx([4, 7, 10], abs=1)


def test_class_wise_over_a_hundred_has_the_measured_sizes() -> None:
    counts = drawn("class", 0.1, participants=100)
    sizes = counts.sum(axis=1)
    assert np.percentile(sizes, [5, 50, 95]) == pytest.approx([19, 87, 229], rel=0.2)
    assert (sizes < 80).sum() / DRAWS == pytest.approx(45, abs=4)
    assert np.percentile(classes_held(counts), [5, 50, 95]) == pytest.approx([3, 6, 10], abs=1)


def test_class_wise_at_a_thousandth_leaves_some_participants_empty() -> None:
    counts = drawn("class", 0.001)
    assert 0.5 < (counts.sum(axis=1) == 0).sum() / DRAWS < 2
    assert np.percentile(classes_held(counts), [5, 50, 95]) == pytest.approx([1, 2, 4], abs=1)


@pytest.mark.parametrize(("name", "expected"), [("client", [4, 6, 9]), ("client-prior", [2, 2, 4])])
def test_client_wise_has_the_measured_classes(name: str, expected: list[int]) -> None:
    counts = drawn(name, 0.1)
    assert (counts.sum(axis=1) == 1000).all()
    assert np.percentile(classes_held(counts), [5, 50, 95]) == pytest.approx(expected, abs=1)


def test_the_prior_divides_alpha_by_the_number_of_equal_classes() -> None:
    with_prior = client_wise_with_prior(balanced(), 10, 2.0, generator())
    assert np.array_equal(with_prior, client_wise(balanced(), 10, 0.1, generator()))


def test_the_prior_makes_frequent_classes_frequent() -> None:
    labels = np.repeat([0, 1], [5000, 500])
    counts = counted(labels, client_wise_with_prior(labels, 10, 50.0, generator()), 10)
    assert (counts[:, 0] > counts[:, 1]).all()


def test_no_participant_number_is_the_last_to_be_served() -> None:
    held = classes_held(drawn("client", 0.1)).reshape(DRAWS, 10)
    assert held[:, :3].mean() == pytest.approx(held[:, -3:].mean(), abs=1)


def test_log_dirichlet_has_the_means_and_variances_of_a_dirichlet() -> None:
    concentration = np.array([0.2, 1.0, 3.0])
    powers = np.exp(log_dirichlet(concentration, 20_000, generator()))
    shares = powers / powers.sum(axis=1, keepdims=True)
    mean = concentration / concentration.sum()
    assert shares.mean(axis=0) == pytest.approx(mean, abs=0.01)
    assert shares.var(axis=0) == pytest.approx(mean * (1 - mean) / (concentration.sum() + 1), abs=0.005)


def test_log_dirichlet_is_finite_where_a_plain_draw_is_all_zero() -> None:
    assert np.isfinite(log_dirichlet(np.full(20, 5e-324), 50, generator())).all()


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1), st.integers(0, 1000))
def test_largest_remainder_adds_up_and_is_never_off_by_one(rows: list[list[float]], total: int) -> None:
    shares = np.array(rows) / np.array(rows).sum(axis=1, keepdims=True)
    whole = largest_remainder(shares, np.full(len(rows), total))
    assert (whole.sum(axis=1) == total).all()
    assert (np.abs(whole - shares * total) < 1).all()


def test_largest_remainder_rounds_up_the_largest() -> None:
    shares, totals = np.array([[0.44, 0.27, 0.29], [0.05, 0.9, 0.05]]), np.array([10, 100])
    assert largest_remainder(shares, totals).tolist() == [[4, 3, 3], [5, 90, 5]]


def test_sites_come_in_natural_order() -> None:
    names, owners = by_site(["site-10", "site-2", "north", "site-10", "site-1"])
    assert names == ("north", "site-1", "site-2", "site-10")
    assert [names[owner] for owner in owners] == ["site-10", "site-2", "north", "site-10", "site-1"]
