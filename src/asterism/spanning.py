"""The smallest spanning tree of a pool: all that the paper's estimate of the class number needs to know of it.

At radius ε, DBSCAN with a smallest region of two makes every point with a neighbour a core point, so its regions are
the components of at least two points in the graph of all pairs within ε. Those are the components of the spanning tree
without its edges longer than ε (single linkage). One tree answers for every radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asterism.distances import Floats, Integers, Mask, Points, square
from asterism.forest import Candidates, bridges, candidates, grow, largest

DENSE = 4096  # points whose distances all fit into 128 MiB


@dataclass(frozen=True)
class Tree:
    """A smallest spanning tree under Euclidean distance.

    ``edges`` (n − 1, 2) and their ``lengths``, ascending; ``nearest`` (n,), each point's distance to the closest other
    one, infinite for a single point; the ``smallest`` and ``largest`` distance of any two points, 0 where there are
    no two.
    """

    edges: Integers
    lengths: Floats
    nearest: Floats
    smallest: float
    largest: float

    def __len__(self) -> int:
        return len(self.nearest)


class Survey(Protocol):
    """Points whose distances were looked at once, for as many trees as one likes."""

    def tree(self, keep: Mask | None = None) -> Tree:
        """The tree of all points, or of those that ``keep`` (n,) says, numbered among themselves."""
        ...


def tree(points: Points, *, device: str = "cpu", dense: int = DENSE) -> Tree:
    """The exact tree of ``points`` (n, d), all finite; up to ``dense`` of them by a table of all distances."""
    return survey(points, device=device, dense=dense).tree()


def survey(points: Points, *, device: str = "cpu", dense: int = DENSE) -> Survey:
    """The one look at the distances that trees of ``points``, or of parts of them, are grown from."""
    return Table(square(points)) if len(points) <= max(2, dense) else Sparse.of(points, device)


@dataclass(frozen=True)
class Table:
    """Few points: all distances."""

    distances: Floats

    def tree(self, keep: Mask | None = None) -> Tree:
        """The tree by Prim's rule."""
        distances = self.distances if keep is None else self.distances[np.ix_(keep, keep)]
        edges, lengths = _prim(distances)
        return _tree(len(distances), edges, lengths, float(distances.max(initial=0)))


@dataclass(frozen=True)
class Sparse:
    """Many points: candidates among the distinct ones, and which of those each point is."""

    known: Candidates | None
    place: Integers

    @classmethod
    def of(cls, points: Points, device: str) -> Sparse:
        """The survey of ``points``; equal ones are looked at once."""
        first, place = distinct(points)
        return cls(candidates(points[first], device) if len(first) > 1 else None, place)

    def tree(self, keep: Mask | None = None) -> Tree:
        """The tree by certified growth (see ``forest``); equal points hang on the first of their kind at length 0."""
        place = self.place if keep is None else self.place[keep]
        held, first, rank = np.unique(place, return_index=True, return_inverse=True)
        repeats = np.flatnonzero(first[rank] != np.arange(len(place)))
        edges, lengths = np.stack([first[rank[repeats]], repeats], axis=1), np.zeros(len(repeats))
        most = 0.0
        if self.known is not None and len(held) > 1:
            found, more = _grown(self.known, held)
            back = np.zeros(len(self.known.points), np.int64)
            back[held] = first
            edges, lengths = np.concatenate([edges, back[found]]), np.concatenate([lengths, more])
            most = largest(self.known, held)
        return _tree(len(place), edges, lengths, most)


def distinct(points: Points) -> tuple[Integers, Integers]:
    """Where each distinct row is first found, in the order of their bytes, and which of them every row is."""
    rows = np.ascontiguousarray(points + 0.0)  # −0 becomes 0
    if not rows.size:
        return np.arange(min(1, len(rows))), np.zeros(len(rows), np.int64)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    order = np.argsort(keys, kind="stable")
    fresh = np.ones(len(order), bool)
    fresh[1:] = keys[order[1:]] != keys[order[:-1]]
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(fresh) - 1
    return order[fresh], place


def _grown(known: Candidates, held: Integers) -> tuple[Integers, Floats]:
    keep = np.zeros(len(known.points), bool)
    keep[held] = True
    taken, group = grow(known, keep)
    edges, lengths = np.stack([known.left[taken], known.right[taken]], axis=1), known.lengths[taken]
    if group.max() == 0:
        return edges, lengths
    more, further = bridges(known, group)
    return np.concatenate([edges, more]), np.concatenate([lengths, further])


def _prim(distances: Floats) -> tuple[Integers, Floats]:
    points = len(distances)
    edges, lengths = np.empty((max(0, points - 1), 2), np.int64), np.empty(max(0, points - 1))
    near, via = np.full(points, np.inf), np.zeros(points, np.int64)
    free = np.ones(points, bool)
    added = 0
    for step in range(len(edges)):
        free[added], near[added] = False, np.inf
        closer = (distances[added] < near) & free
        np.copyto(near, distances[added], where=closer)
        np.copyto(via, added, where=closer)
        added = int(near.argmin())
        edges[step], lengths[step] = (via[added], added), near[added]
    return edges, lengths


def _tree(points: int, edges: Integers, lengths: Floats, largest: float) -> Tree:
    order = np.argsort(lengths, kind="stable")
    edges, lengths = np.sort(edges[order], axis=1), lengths[order]
    # A point's shortest tree edge leads to its nearest neighbour (cut property of the point alone).
    nearest = np.full(points, np.inf)
    np.minimum.at(nearest, edges.ravel(), lengths.repeat(2))
    return Tree(edges, lengths, nearest, float(lengths[0]) if len(lengths) else 0.0, largest)
