"""An estimate of the number of novel classes that explains itself: how wide its plateau is, and what it hangs on.

Without a participant column all rows are one site's. Each site's rows become local prototypes (unless they are some
already), the pool is counted, and it is counted again with each site left out in turn; a single site's pool is left
out by tenths, drawn once. Methods that do not count by radius may take seconds a count: of more than ``MANY`` sites
they leave out a tenth at a time. The ``interval`` reaches from the smallest of these counts to the largest.

The *plateau* is the widest range of radii, all counts in it within 1 of the estimate and at least 2, measured as
(end − start)/end: the share of the radius that can be taken away. One region is what every pool ends in, so counts of
1 say nothing, unless all prototypes are the same. A method that weighs candidates instead of radii has no plateau but a
*search*: the score of each candidate, and the range of those that score nearly as well as the best. An estimate is
*stable* when

- its interval is no wider than a tenth of it (below 10 all counts must agree), and
- its plateau is at least ``LEAST_PLATEAU`` wide, or its search's range no wider than a tenth of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from asterism.config import Section
from asterism.data.features import Rows, checked
from asterism.distances import Integers, Mask
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS, Counted, Estimator, Pool, Search, estimator_named
from asterism.prototypes import Curve, exact_curve, local_prototypes, paper_grid, ppm_exact
from asterism.seeds import number
from asterism.spanning import Survey, Tree, distinct, survey

CLUSTERS = 80  # the paper's C_L on CIFAR-100
LEAST_PLATEAU = 0.1
TENTHS = 10
MANY = 20  # sites
ALONE = "all"  # the name of the site of rows that nobody is named for


class Plateau(NamedTuple):
    """The widest range of radii that support an estimate, and its width as a share of ``end``."""

    start: float
    end: float
    width: float


@dataclass(frozen=True)
class Support:
    """What one site brings: shown and withheld prototypes, and the estimate without it (None where it has to stay)."""

    site: str
    prototypes: int
    withheld: int
    without: int | None


@dataclass(frozen=True)
class Estimate:
    """An estimated number of classes with its reasons; ``seconds`` is the only part that two equal calls differ in.

    ``curve`` has every radius at which the pool's number of dense regions changes, ``grid`` the paper's radii;
    ``exact`` is the curve's maximum. ``plateau`` is None for methods that do not count by radius, ``search`` for those
    that weigh no candidates.
    """

    method: str
    estimated: int
    interval: tuple[int, int]
    prototypes: int
    seconds: float = field(compare=False)
    curve: Curve = field(compare=False)
    grid: Curve = field(compare=False)
    exact: int
    plateau: Plateau | None
    sites: tuple[Support, ...]
    search: Search | None = field(default=None, compare=False)

    @property
    def stable(self) -> bool:
        """Whether the estimate hangs neither on one site nor on one radius, nor on a hair's breadth of a score."""
        ranges = [self.interval] if self.search is None else [self.interval, self.search.near]
        firm = all(high - low <= self.estimated // 10 for low, high in ranges)
        if not ESTIMATORS[self.method].by_radius:
            return firm
        return firm and self.plateau is not None and self.plateau.width >= LEAST_PLATEAU

    @property
    def about(self) -> str:
        """What the method is, in a few words."""
        return ESTIMATORS[self.method].about

    @property
    def verdict(self) -> str:
        """``"20, stable"`` or ``"18 to 23, unstable"``."""
        low, high = self.interval
        counts = f"{low}" if low == high else f"{low} to {high}"
        return f"{counts}, {'stable' if self.stable else 'unstable'}"

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "method": self.method,
            "estimated": self.estimated,
            "interval": list(self.interval),
            "prototypes": self.prototypes,
            "seconds": round(self.seconds, 3),
            "curve": _plain(self.curve),
            "grid": _plain(self.grid),
            "exact": self.exact,
            "plateau": None if self.plateau is None else self.plateau._asdict(),
            "stable": self.stable,
            "verdict": self.verdict,
            "sites": [asdict(support) for support in self.sites],
            "about": self.about,
            "search": None if self.search is None else self.search.as_json(),
        }


def _plain(curve: Curve) -> dict[str, list[float]]:
    return {"radius": curve.radius.tolist(), "count": curve.counts.tolist()}


@dataclass(frozen=True)
class Gathered:
    """The server's pool: prototypes in the order of their sites, sizes of their clusters, and each one's site."""

    rows: Rows
    sizes: Integers
    site: Integers
    names: tuple[str, ...]
    withheld: tuple[int, ...]


def estimate(
    features: Rows,
    *,
    participants: Sequence[str] | None = None,
    prototypes: bool = False,
    clusters: int = CLUSTERS,
    method: str = "ppm",
    settings: Section | None = None,
    known: Rows | None = None,
    sizes: Integers | None = None,
    seed: int = 0,
    floor: int = 0,
    device: str = "cpu",
) -> Estimate:
    """The number of classes among ``features`` (n, d), with what speaks for it.

    Args:
        features: one row per image, or per prototype.
        participants: whose each row is.
        prototypes: whether the rows are prototypes already; else each site's rows become up to ``clusters`` of them.
        clusters: C_L, local prototypes per site.
        method: a name in ``estimators.ESTIMATORS``.
        settings: the method's own; None: its defaults.
        known: prototypes (C^L, d) of the known classes, for methods that need them.
        sizes: how many images are behind each row, where the rows are prototypes.
        seed: of the local K-means, of the tenths, and of the method's draws.
        floor: local prototypes of fewer members are withheld.
        device: where torch multiplies the matrices of large pools.
    """
    started = time.perf_counter()
    estimator, rows = estimator_named(method), checked(np.asarray(features))
    _check(rows, participants, clusters, floor)
    _check_sizes(rows, sizes, prototypes)
    known = None if known is None else checked(np.asarray(known), "known")
    if estimator.needs_known:
        Pool.of(rows, known=known).labelled(method)  # refused before the work, not after it
    gathered = _gather(rows, participants, None if prototypes else clusters, seed, floor, sizes)
    looked = survey(gathered.rows, device=device)
    tree = looked.tree()
    counting = Counting(estimator, settings or estimator.params(), gathered, looked, known, seed)
    counted = counting.of(np.ones(len(gathered.rows), bool), tree)
    each = estimator.by_radius or len(gathered.names) <= MANY
    without = {part: counting.of(keep).count for part, keep in _parts(gathered, seed, each)}
    counts = [counted.count, *without.values()]
    curve = exact_curve(tree)
    return Estimate(
        method=method,
        estimated=counted.count,
        interval=(min(counts), max(counts)),
        prototypes=len(gathered.rows),
        curve=curve,
        grid=paper_grid(tree),
        exact=ppm_exact(tree),
        plateau=plateau(curve, counted.count, tree.largest) if estimator.by_radius else None,
        sites=_support(gathered, without if each else {}),
        search=counted.search,
        seconds=time.perf_counter() - started,
    )


def plateau(curve: Curve, estimated: int, largest: float) -> Plateau | None:
    """The widest range of radii up to ``largest`` that supports an estimate; None where no radius does."""
    least = 2 if largest > 0 else 1
    near = (np.abs(curve.counts - estimated) <= 1) & (curve.counts >= least)
    edges = np.flatnonzero(np.diff(near, prepend=False, append=False))
    ends = np.append(curve.radius, largest)
    found = [(float(curve.radius[start]), float(ends[stop])) for start, stop in edges.reshape(-1, 2)]
    ranges = [Plateau(start, end, (end - start) / end if end > 0 else 1.0) for start, end in found]
    return max(ranges, key=lambda found: found.width, default=None)


def _check(rows: Rows, participants: Sequence[str] | None, clusters: int, floor: int) -> None:
    if participants is not None and len(participants) != len(rows):
        raise AsterismError(f"{len(rows)} rows, {len(participants)} participants", where="participants")
    if clusters < 1:
        raise AsterismError(f"clusters must be at least 1, got {clusters}", where="clusters")
    if floor < 0:
        raise AsterismError(f"floor must be at least 0, got {floor}", where="floor")


def _check_sizes(rows: Rows, sizes: Integers | None, prototypes: bool) -> None:
    if sizes is not None and not prototypes:
        raise AsterismError("sizes are of prototypes, and these rows are images", where="sizes")
    if sizes is not None and (len(sizes) != len(rows) or not (sizes > 0).all()):
        raise AsterismError(f"{len(sizes)} sizes of {len(rows)} rows", where="sizes", fix="one each, none below 1")


def _gather(
    rows: Rows,
    participants: Sequence[str] | None,
    clusters: int | None,
    seed: int,
    floor: int,
    sizes: Integers | None,
) -> Gathered:
    """The pool of all sites, names ascending; without ``clusters`` the rows are the prototypes, of these sizes."""
    names, site = np.unique(np.asarray(participants or [ALONE] * len(rows), np.str_), return_inverse=True)
    if clusters is None:
        order = np.argsort(site, kind="stable")
        sizes = np.ones(len(rows), np.int64) if sizes is None else sizes
        return Gathered(rows[order], sizes[order], site[order], tuple(map(str, names)), (0,) * len(names))
    local = [
        local_prototypes(rows[site == k], clusters, seed=number(seed, "site", str(name)), floor=floor)
        for k, name in enumerate(names)
    ]
    if not any(len(found.sizes) for found in local):
        raise AsterismError(
            f"no cluster has {floor} members: every prototype is withheld",
            where="floor",
            fix="ask for a lower floor or fewer clusters",
        )
    return Gathered(
        np.concatenate([found.centres for found in local]),
        np.concatenate([found.sizes for found in local]),
        np.repeat(np.arange(len(names)), [len(found.sizes) for found in local]),
        tuple(str(name) for name in names),
        tuple(found.withheld for found in local),
    )


@dataclass(frozen=True)
class Counting:
    """Everything an estimate of the pool, or of a part of it, hangs on."""

    estimator: Estimator
    settings: Section
    gathered: Gathered
    looked: Survey
    known: Rows | None
    seed: int

    def of(self, keep: Mask, tree: Tree | None = None) -> Counted:
        """The count of the kept prototypes, whose tree may be at hand already."""
        rows, sizes = self.gathered.rows[keep], self.gathered.sizes[keep]
        pool = Pool(rows, sizes, lambda: tree or self.looked.tree(keep), self.known, self.seed)
        return self.estimator.count(pool, self.settings)


def _parts(gathered: Gathered, seed: int, each: bool) -> Iterator[tuple[int, Mask]]:
    """What stays of the pool when each site, or each tenth of the sites, is left out; an empty or only part stays."""
    part = gathered.site if each else gathered.site % TENTHS
    if len(gathered.names) == 1:
        _, rank = distinct(gathered.rows)
        rng = np.random.default_rng(number(seed, "tenths"))
        # By rank, so that the order of the rows does not matter.
        part = np.empty(len(part), np.int64)
        part[np.argsort(rank, kind="stable")] = rng.permutation(np.arange(len(part)) % TENTHS)
    for k in np.unique(part):
        keep = part != k
        if keep.any():
            yield int(k), keep


def _support(gathered: Gathered, without: dict[int, int]) -> tuple[Support, ...]:
    held = np.bincount(gathered.site, minlength=len(gathered.names)).tolist()
    single = len(gathered.names) == 1
    return tuple(
        Support(name, held[k], gathered.withheld[k], None if single else without.get(k))
        for k, name in enumerate(gathered.names)
    )
