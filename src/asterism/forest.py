"""The spanning tree of many points out of few of their pairs, each edge with a certificate that it belongs there.

**Candidates.** One pass over all pairs keeps, for each point i, the k points with the smallest lower bounds (see
``distances``). The exact length of those pairs is computed; every other pair of i is at least ``floors[i]`` long, the
largest bound that was kept.

**Growing.** Order all pairs by length, candidates before others of equal length, then by position. This order is
strict, so one spanning tree is smallest in it, and its lengths are those of every smallest spanning tree. A component's
first outgoing pair belongs to that tree (cut property). Let w be the length of its first outgoing *candidate*, and f
the smallest floor of its points: if w ≤ f, no outgoing pair that is not a candidate comes before it, so it is the first
of all, and it is taken. This repeats, as Borůvka did it, while some component has such a certificate.

**Bridges.** What is left are groups of more than k points whose candidates all lie inside. A second pass bounds the
distance of every two groups from below. Prim's rule then joins the groups: the pair of groups with the smallest key is
joined if its key is an exact distance, otherwise its key is replaced by the exact distance; as no key is ever above the
truth, what is joined has the smallest distance of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from asterism.distances import Bounded, Floats, Integers, Mask, Points, between, bounded, closest, farthest

NEIGHBOURS = 16
BLURRED = 0.1  # share of a floor's square that rounding may take before float64 is worth its time
MOST_GROUPS = 1 << 12


@dataclass(frozen=True)
class Candidates:
    """Pairs (left, right) with their exact lengths, ascending; floors of all other pairs, and how far each reaches.

    ``reach`` (n,) is each point's largest bound of a squared distance, in the units of ``bounds``.
    """

    points: Points
    bounds: Bounded
    left: Integers
    right: Integers
    lengths: Floats
    floors: Floats
    reach: Floats


def candidates(points: Points, device: str = "cpu", neighbours: int = NEIGHBOURS) -> Candidates:
    """Candidates among ``points`` (n, d), n ≥ 2, that must be distinct."""
    everyone = np.arange(len(points))
    neighbours = min(neighbours, len(points) - 1)
    bounds = bounded(points, torch.float32, device)
    found, squares, reach = _scan(bounds, everyone, neighbours)
    floors = bounds.length(squares)
    blurred = np.flatnonzero(2 * bounds.excess(everyone) > BLURRED * squares)
    if len(blurred):
        sharp = bounded(points, torch.float64, device)
        found[blurred], squares, _ = _scan(sharp, blurred, neighbours)
        floors[blurred] = sharp.length(squares)
    if neighbours == len(points) - 1:
        floors[:] = np.inf
    lengths = np.concatenate([between(points, i, others) for i, others in enumerate(found)])
    left, right = everyone.repeat(neighbours), found.ravel()
    _, first = np.unique(np.minimum(left, right) * len(points) + np.maximum(left, right), return_index=True)
    order = first[np.argsort(lengths[first], kind="stable")]
    return Candidates(points, bounds, left[order], right[order], lengths[order], floors, reach)


def _scan(bounds: Bounded, which: Integers, neighbours: int) -> tuple[Integers, Floats, Floats]:
    """For each point of ``which``: its candidates, the largest of their bounds, and the largest bound of all."""
    found = np.empty((len(which), neighbours), np.int64)
    squares, reach = np.empty(len(which)), np.empty(len(which))
    done = 0
    for part, panel in bounds.panels(which):
        rows = slice(done, done + len(part))
        own = bounds.own(part)
        reach[rows] = panel.amax(dim=1).cpu().numpy() + own
        panel[torch.arange(len(part)), torch.from_numpy(part)] = torch.inf
        nearest = panel.topk(neighbours, dim=1, largest=False, sorted=False)
        found[rows] = nearest.indices.cpu().numpy()
        squares[rows] = nearest.values.amax(dim=1).cpu().numpy() + own
        done += len(part)
    return found, squares, reach


def largest(known: Candidates, kept: Integers) -> float:
    """The exact largest distance among the points ``kept``.

    A pair of points that were not clipped is at most as long as the upper bound of either's reach, and every pair with
    a clipped point is looked at; points whose upper bound is not above what was found already cannot hold a longer one.
    """
    bounds = known.bounds
    widest = bounds.excess(kept[~bounds.clipped[kept]]).max(initial=0)
    upper = bounds.utmost(known.reach[kept] + bounds.excess(kept) + widest)
    upper[bounds.clipped[kept]] = np.inf
    order = np.argsort(-upper, kind="stable")
    best = 0.0
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        part = part[upper[part] > best]
        if not len(part):
            break
        best = max(best, farthest(known.points, kept[part], kept))
    return best


def grow(known: Candidates, keep: Mask) -> tuple[Integers, Integers]:
    """Certified edges of the tree over the points ``keep``, as positions among the candidates, and each point's group.

    Groups are numbered from 0; points that are not kept have −1.
    """
    group = np.where(keep, np.cumsum(keep) - 1, -1)
    edges = np.flatnonzero(keep[known.left] & keep[known.right])
    taken = [np.empty(0, np.int64)]
    groups = int(keep.sum())
    while groups > 1:
        a, b = group[known.left[edges]], group[known.right[edges]]
        outgoing = a != b
        edges, a, b = edges[outgoing], a[outgoing], b[outgoing]
        first = np.full(groups, len(edges))
        np.minimum.at(first, a, np.arange(len(edges)))
        np.minimum.at(first, b, np.arange(len(edges)))
        floor = np.full(groups, np.inf)
        np.minimum.at(floor, group[keep], known.floors[keep])
        length = np.append(known.lengths[edges], np.inf)[first]
        chosen = np.unique(first[(first < len(edges)) & (length <= floor)])
        if not len(chosen):
            break
        taken.append(edges[chosen])
        links = coo_array((np.ones(len(chosen)), (a[chosen], b[chosen])), shape=(groups, groups))
        groups, joined = connected_components(links, directed=False)
        group[keep] = joined[group[keep]]
    return np.concatenate(taken), group


def bridges(known: Candidates, group: Integers) -> tuple[Integers, Floats]:
    """The edges (m − 1, 2) that join the m groups at the smallest exact lengths, and those lengths."""
    members = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
    groups = int(group.max()) + 1
    if groups > min(MOST_GROUPS, len(members) // 4):  # so small only where rounding hides every neighbour
        return _point_by_point(known.points, members, group)
    starts = np.searchsorted(group[members], np.arange(groups + 1))
    parts = [members[starts[g] : starts[g + 1]] for g in range(groups)]
    keys, outside = _group_bounds(known.bounds, members, group, starts[:-1])

    def exact(g: int, h: int) -> tuple[float, int, int]:
        limit = _limit(known.bounds, keys[g, h], parts[g], parts[h])
        left, right = (part[outside[part] <= limit] for part in (parts[g], parts[h]))
        return closest(known.points, left, right)

    lengths = known.bounds.length(keys)
    edges = np.empty((groups - 1, 2), np.int64)
    joined = np.empty(groups - 1)
    inside = np.zeros(groups, bool)
    inside[0] = True
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    near, via = lengths[0].copy(), np.zeros(groups, np.int64)
    done = 0
    while done < groups - 1:
        h = int(np.where(inside, np.inf, near).argmin())
        g = int(via[h])
        if (g, h) in ends:
            edges[done], joined[done], inside[h] = ends[g, h], near[h], True
            done += 1
            closer = lengths[h] < near
            near[closer], via[closer] = lengths[h][closer], h
        else:
            length, i, j = exact(g, h)
            ends[g, h] = (i, j)
            lengths[g, h] = length
            within = np.flatnonzero(inside)
            via[h] = within[lengths[within, h].argmin()]
            near[h] = lengths[via[h], h]
    return edges, joined


def _group_bounds(bounds: Bounded, members: Integers, group: Integers, starts: Integers) -> tuple[Floats, Floats]:
    """Bounds of squared distances of any two groups, and of each point's distance to the other groups."""
    order = torch.from_numpy(members).to(bounds.rows.device)
    # In the order of the groups, so that each is one run of columns.
    ordered = Bounded(
        bounds.rows[order],
        bounds.squares[members],
        bounds.shrunk[order],
        bounds.slack,
        bounds.scale,
        bounds.clipped[members],
    )
    keys = np.full((len(starts), len(starts)), np.inf)
    outside = np.full(len(bounds), np.inf)
    for part, panel in ordered.panels(np.arange(len(members))):
        nearest = np.minimum.reduceat(panel.cpu().numpy(), starts, axis=1) + ordered.own(part)[:, None]
        mine = group[members[part]]
        nearest[np.arange(len(part)), mine] = np.inf
        outside[members[part]] = bounds.length(nearest.min(axis=1))
        np.minimum.at(keys, mine, nearest)
    return np.minimum(keys, keys.T), outside


def _limit(bounds: Bounded, key: float, left: Integers, right: Integers) -> float:
    """A length that the distance of two groups cannot exceed, given the bound of its square."""
    if bounds.clipped[left].any() or bounds.clipped[right].any():
        return np.inf
    most = key + bounds.excess(left).max() + bounds.excess(right).max()
    return float(bounds.utmost(np.array([most]))[0])


def _point_by_point(points: Points, members: Integers, group: Integers) -> tuple[Integers, Floats]:
    """Prim's rule with every distance exact: slow, but right where rounding leaves too many groups."""
    near, via = np.full(len(points), np.inf), np.zeros(len(points), np.int64)
    free = group >= 0
    edges: list[tuple[int, int]] = []
    lengths: list[float] = []
    fresh = members[group[members] == group[members[0]]]
    while True:
        free[fresh] = False
        rest = np.flatnonzero(free)
        if not len(rest):
            return np.array(edges), np.array(lengths)
        for i in fresh:
            row = between(points, int(i), rest)
            closer = row < near[rest]
            near[rest[closer]], via[rest[closer]] = row[closer], i
        nearest = int(rest[near[rest].argmin()])
        edges.append((int(via[nearest]), nearest))
        lengths.append(float(near[nearest]))
        fresh = members[group[members] == group[nearest]]
