"""A draw's name is its seed: stable values, independent names, no process-wide state."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from asterism.seeds import generator, number

purposes = st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4).map(tuple)


def test_seeds_are_pinned_so_that_old_runs_can_be_repeated() -> None:
    assert number(2023, "clients", "known", 0) == 7623096815869176221
    assert torch.randperm(10, generator=generator(2023, "clients", "known", 0)).tolist() == [
        8,
        1,
        3,
        5,
        6,
        4,
        9,
        2,
        7,
        0,
    ]


@given(st.integers(), purposes)
def test_seed_is_a_63_bit_number_and_repeats(seed: int, purpose: tuple[object, ...]) -> None:
    assert 0 <= number(seed, *purpose) < 2**63
    assert number(seed, *purpose) == number(seed, *purpose)


@given(st.integers(), purposes, st.integers(), purposes)
def test_different_names_give_different_seeds(
    seed: int, purpose: tuple[object, ...], other: int, another: tuple[object, ...]
) -> None:
    assert (number(seed, *purpose) == number(other, *another)) == ((seed, purpose) == (other, another))


def test_names_do_not_run_into_each_other() -> None:
    names = [("batches", 1, 11), ("batches", 11, 1), ("batches", "1", 11), ("batches", 111), ("batches", (1, 11))]
    assert len({number(0, *name) for name in names}) == len(names)


def test_a_further_draw_changes_no_other() -> None:
    expected = torch.rand(4, generator=generator(3, "augment", 5))
    first = generator(3, "augment", 5)
    torch.rand(100, generator=generator(3, "something new"))
    assert torch.equal(torch.rand(4, generator=first), expected)


def test_the_process_wide_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(1, "anything"))
    assert torch.equal(torch.get_rng_state(), before)
