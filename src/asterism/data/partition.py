"""Who holds which image: one function per reading of "a Dirichlet partition", each index given exactly once.

Every reading takes the labels of one stage and returns the *owners*: the participant number of every image,
so that using an index twice or losing it cannot be written down. Dirichlet weights are kept as logarithms,
because at α = 0.001 nearly all of them are smaller than the smallest float and a plain draw ends in 0 / 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Partition: TypeAlias = Callable[[Ints, int, float, np.random.Generator], Ints]

# Below this, dividing an exponential draw by α would overflow to infinity.
SMALLEST_CONCENTRATION = 1e-300


def class_wise(labels: Ints, participants: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Owners where each class spreads over participants by its own draw of Dir(α·1_K); sizes differ."""
    kinds, sizes = _kinds(labels)
    weights = log_dirichlet(np.full(participants, alpha), len(sizes), rng)
    return _deal(kinds, largest_remainder(_shares(weights), sizes).T, rng)


def client_wise(labels: Ints, participants: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Owners where each participant's classes are one draw of Dir(α·1_C); equal sizes."""
    kinds, sizes = _kinds(labels)
    weights = log_dirichlet(np.full(len(sizes), alpha), participants, rng)
    return _deal(kinds, _filled(weights, sizes, rng), rng)


def client_wise_with_prior(labels: Ints, participants: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Owners where each participant's classes are one draw of Dir(α·p), p the class prior; equal sizes."""
    kinds, sizes = _kinds(labels)
    weights = log_dirichlet(alpha * sizes / max(1, len(labels)), participants, rng)
    return _deal(kinds, _filled(weights, sizes, rng), rng)


def identical(labels: Ints, participants: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Owners where all participants draw from one distribution; equal sizes, and α is unused."""
    return rng.permutation(np.arange(len(labels)) % participants)


PARTITIONS: Mapping[str, Partition] = {
    "class": class_wise,
    "client": client_wise,
    "client-prior": client_wise_with_prior,
    "iid": identical,
}


def by_site(sites: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """The participants a manifest names, in natural order (site-2 before site-10), and each image's owner."""
    names = tuple(sorted(set(sites), key=_natural))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[site] for site in sites], dtype=np.int64)


def log_dirichlet(concentration: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Logarithms, up to a constant per row, of ``draws`` samples of a Dirichlet: (draws, len(concentration)).

    A Gamma(a) variate equals a Gamma(a + 1) variate times U^(1/a); the logarithm of that is finite for any a.
    """
    a = np.maximum(concentration, SMALLEST_CONCENTRATION)
    shape = (draws, len(a))
    return np.log(rng.standard_gamma(a + 1, shape)) - rng.standard_exponential(shape) / a


def largest_remainder(shares: Floats, totals: Ints) -> Ints:
    """Whole numbers in proportion to each row of ``shares`` (n, k) that add up exactly to ``totals`` (n,)."""
    exact = shares * totals[:, None]
    whole: Ints = np.floor(exact).astype(np.int64)
    missing = totals - whole.sum(axis=1)
    rank = np.argsort(np.argsort(whole - exact, axis=1, kind="stable"), axis=1)
    whole[rank < missing[:, None]] += 1
    return whole


def _kinds(labels: Ints) -> tuple[Ints, Ints]:
    """Labels renumbered without gaps, and the size of every class that is present."""
    _, kinds, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return kinds, sizes


def _shares(weights: Floats) -> Floats:
    """Rows of logarithms as proportions; an entry of −∞ gets nothing."""
    powers: Floats = np.exp(weights - weights.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _filled(weights: Floats, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Counts (participants, classes) with equal row sums, drawn without replacement from ``sizes``.

    Participants fill up one after the other, and the mass of a class that has run out moves to those left,
    so late ones hold fewer classes. Their order is drawn, so that a name says nothing about its share. Counts
    follow the weights by rounding, not by another draw: its noise would pile up in whoever comes last.
    """
    participants = len(weights)
    need = (sizes.sum() + np.arange(participants)[::-1]) // participants
    stock = sizes.copy()
    counts = np.zeros(weights.shape, dtype=np.int64)
    for k in rng.permutation(participants):
        while missing := need[k] - counts[k].sum():
            shares = _shares(np.where(stock > 0, weights[k], -np.inf)[None])
            taken = np.minimum(largest_remainder(shares, np.array([missing]))[0], stock)
            counts[k], stock = counts[k] + taken, stock - taken
    return counts


def _deal(kinds: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """Owners with exactly ``counts`` (participants, classes); which image of a class goes where is random."""
    owners = np.empty(len(kinds), dtype=np.int64)
    for c, column in enumerate(counts.T):
        owners[kinds == c] = rng.permutation(np.repeat(np.arange(len(column)), column))
    return owners


def _natural(name: str) -> tuple[list[int | str], str]:
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
