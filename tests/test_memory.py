"""The data memory: what it holds after a stream, by each rule of eviction, however the stream is cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asterism import memory
from asterism.memory import Eviction, Memory
from asterism.runs.store import RunFolder
from asterism.seeds import generator
from asterism.site import Share, Site
from tests.synthetic import Tiny, same_bits

RULES: tuple[Eviction, ...] = get_args(Eviction)
STREAM = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), max_size=40)
CUTS = st.lists(st.integers(1, 9), min_size=40, max_size=40)


def arrays(stream: list[tuple[int, bool]]) -> tuple[Tensor, Tensor, Tensor]:
    """Image rows 100, 101, …, scores, and which are novel."""
    rows = 100 + torch.arange(len(stream))
    scores = torch.tensor([float(score) for score, _ in stream])
    return rows, scores, torch.tensor([novel for _, novel in stream], dtype=torch.bool)


def filled(stream: list[tuple[int, bool]], cuts: list[int], capacity: int, eviction: Eviction, seed: int = 1) -> Memory:
    held, rng = memory.empty(), generator(seed, "memory")
    rows, scores, novel = arrays(stream)
    start = 0
    for size in cuts:
        part = slice(start, start + size)
        held = memory.add(held, rows[part], scores[part], novel[part], capacity=capacity, eviction=eviction, rng=rng)
        start += size
    return held


@given(STREAM, CUTS, st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_oldest_leave_first(stream: list[tuple[int, bool]], cuts: list[int], capacity: int) -> None:
    expected = [100 + i for i, (_, novel) in enumerate(stream) if novel][-capacity:]
    assert filled(stream, cuts, capacity, "oldest").rows.tolist() == expected


@given(STREAM, CUTS, st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_least_novel_leave_first(stream: list[tuple[int, bool]], cuts: list[int], capacity: int) -> None:
    arrivals = [(score, i) for i, (score, novel) in enumerate(stream) if novel]
    expected = sorted(i for _, i in sorted(arrivals)[:capacity])
    held = filled(stream, cuts, capacity, "least-novel")
    assert held.rows.tolist() == [100 + i for i in expected]
    assert held.scores.tolist() == [stream[i][0] for i in expected]


@pytest.mark.parametrize("eviction", RULES)
@given(stream=STREAM, cuts=CUTS, capacity=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_memory_counts_everything_and_holds_no_more_than_it_may(
    eviction: Eviction, stream: list[tuple[int, bool]], cuts: list[int], capacity: int
) -> None:
    held = filled(stream, cuts, capacity, eviction)
    novel = [100 + i for i, (_, novel) in enumerate(stream) if novel]
    assert len(held) == len(held.scores) == len(held.order) == min(capacity, len(novel))
    assert (held.seen, held.flagged) == (len(stream), len(novel))
    assert held.rows.tolist() == sorted(set(held.rows.tolist())) and set(held.rows.tolist()) <= set(novel)
    assert memory.novelty_rate(held) == (len(novel) / len(stream) if stream else 0.0)


def test_by_chance_every_image_is_as_likely_to_stay() -> None:
    stream = [(0, True)] * 20
    stayed: Counter[int] = Counter()
    for seed in range(2000):
        stayed.update(filled(stream, [7] * 3, 5, "random", seed).rows.tolist())
    assert len(stayed) == 20
    assert all(abs(count / 2000 - 5 / 20) < 0.05 for count in stayed.values())  # 5 standard deviations


def test_chance_is_the_seeds() -> None:
    stream = [(i % 7, True) for i in range(40)]
    one, same, other = (filled(stream, [40], 9, "random", seed) for seed in (1, 1, 2))
    assert torch.equal(one.rows, same.rows) and not torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("eviction", RULES)
def test_adding_leaves_the_memory_and_the_batch_as_they_were(eviction: Eviction) -> None:
    before = filled([(3, True), (1, True)], [2], 2, eviction)
    kept = {name: value.clone() for name, value in memory.tensors(before).items()}
    rows, scores, novel = arrays([(2, True), (5, False)])
    memory.add(before, rows, scores, novel, capacity=2, eviction=eviction, rng=generator(1))
    assert same_bits(memory.tensors(before), kept)
    assert (rows.tolist(), scores.tolist(), novel.tolist()) == ([100, 101], [2.0, 5.0], [True, False])


def test_memory_survives_a_restart_and_goes_on_as_if_there_had_been_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    tiny = Tiny()
    first = filled([(3, True), (1, False), (2, True)], [3], 3, "oldest")
    folder.stores.of("site/1")["memory/novel-1"] = memory.tensors(first)
    folder.keep(1, tiny.start, {})
    again = RunFolder(folder.path)
    assert again.newest() is not None
    entry = again.stores.of("site/1")["memory/novel-1"]
    assert {name: value.dtype for name, value in entry.items()} == {
        "rows": torch.int64,
        "scores": torch.float32,
        "order": torch.float64,
        "seen": torch.int64,
    }
    rows, scores, novel = arrays([(0, True), (0, True)])
    one, other = (
        memory.add(held, rows, scores, novel, capacity=3, eviction="oldest", rng=generator(1))
        for held in (first, memory.from_tensors(entry))
    )
    assert same_bits(memory.tensors(one), memory.tensors(other))
    assert one.rows.tolist() == [102, 100, 101]


def site_with_share() -> Site:
    tiny = Tiny()
    share = Share(tiny.images, tiny.images.labels, torch.arange(10))
    return Site("site-0", lambda stage: share, {}, tiny.worker)


def test_a_participant_that_never_screened_learns_from_its_whole_share() -> None:
    site = site_with_share()
    assert memory.novel_share(site, "novel-1") == site.share("novel-1")
    assert len(memory.pseudo_labelled(site, "novel-1")) == 0


def test_one_that_found_nothing_has_nothing_to_learn_from() -> None:
    site, none = site_with_share(), torch.empty(0)
    memory.keep(site, "novel-1", memory.empty(), none.long(), none.long(), none)
    assert len(memory.novel_share(site, "novel-1")) == 0
    assert len(memory.pseudo_labelled(site, "novel-1")) == 0


def test_what_was_kept_is_found_again_by_stage() -> None:
    site = site_with_share()
    held = Memory(torch.tensor([4, 2]), torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]).double(), 5, 2)
    memory.keep(site, "novel-1", held, torch.tensor([7, 3]), torch.tensor([1, 0]), torch.tensor([0.9, 0.6]))
    assert memory.novel_share(site, "novel-1").indices.tolist() == [4, 2]
    assert memory.novel_share(site, "novel-2").indices.tolist() == list(range(10))
    found = memory.pseudo_labelled(site, "novel-1")
    assert (found.indices.tolist(), found.targets[found.indices].tolist()) == ([7, 3], [1, 0])
    assert (found.targets >= 0).sum() == 2
    assert memory.pseudo_labelled(site, "novel-1", 0.7).indices.tolist() == [7]
    assert [earlier.indices.tolist() for earlier in memory.earlier_shares(site, "novel-2")] == [[4, 2]]
    assert memory.earlier_shares(site, "novel-1") == []
