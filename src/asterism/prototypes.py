"""Prototypes: local K-means at a site, the number of dense regions in the server's pool, and global prototypes.

Paper: Wang et al., *Federated Continual Novel Class Learning*, 2023, https://arxiv.org/abs/2312.13500, "Detailed
Design of PPM" (Eqs. 7 and 8). The 51 runs of DBSCAN are read off one spanning tree, see ``spanning``.

Departure: distances are taken over pairs i < j, so that no self-pair makes the first radius 0; noise is not counted as
a region; a pool of one prototype is one class, an empty pool none. Where all radii of Eq. 8 give one region, 1 is
returned and not a larger number: one novel class is possible, and a lifted number would hide that an outlier has taken
the grid.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asterism.distances import Floats, Integers, Points
from asterism.errors import AsterismError
from asterism.seeds import number
from asterism.spanning import Tree, distinct

Centres = NDArray[np.float32]

STEPS = 50  # E of Eq. 8
CHUNK = 1 << 12  # rows whose distances to all centres are held at a time


@dataclass(frozen=True)
class LocalPrototypes:
    """What a site may send: ``centres`` (k, d), the ``sizes`` (k,) of their clusters, and how many were withheld."""

    centres: Centres
    sizes: Integers
    withheld: int


class Curve(NamedTuple):
    """How many dense regions there are at each radius, radii ascending."""

    radius: Floats
    counts: Integers


def local_prototypes(z: Points, clusters: int, *, seed: int, floor: int = 0, restarts: int = 1) -> LocalPrototypes:
    """Eq. 7: the centroids of K-means on one site's representations ``z`` (n, d), with as many clusters as it can fill.

    Those are at most ``clusters`` and at most the number of distinct rows. Clusters of fewer than ``floor`` members are
    withheld. Rows in another order give the same prototypes.
    """
    weights = np.ones(len(z), np.int64)
    centres, sizes = _k_means(z, weights, clusters, number(seed, "local prototypes"), restarts)
    shown = sizes >= floor
    return LocalPrototypes(centres[shown], sizes[shown].astype(np.int64), int((~shown).sum()))


def global_prototypes(
    pool: Points, count: int, *, seed: int, weights: Floats | Integers | None = None, restarts: int = 5
) -> Centres:
    """``count`` centroids (count, d) of K-means on the pool; rows in another order give the same.

    Departure: ``weights`` make a row count more, such as the sizes of the local clusters; the paper has none.
    """
    weights = np.ones(len(pool), np.int64) if weights is None else weights
    centres, _ = _k_means(pool, weights, count, number(seed, "global prototypes"), restarts)
    if len(centres) < count:
        raise AsterismError(
            f"{count} global prototypes are asked of {len(centres)} distinct local ones",
            fix="ask for fewer classes, or for more local clusters",
        )
    return centres


def _k_means(
    z: Points, weights: Floats | Integers, clusters: int, seed: int, restarts: int
) -> tuple[Centres, Floats | Integers]:
    """Centroids and the weights behind them, the same for any order of the rows and any number of threads."""
    first, place = distinct(z)
    order = np.lexsort((weights, place))  # sums of weights, too, must not depend on the order of the rows
    totals = np.bincount(place[order], weights[order], len(first))
    rows = np.asarray(z[first], np.float64)
    if len(first) <= clusters:
        return rows.astype(np.float32), totals
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    fitted = KMeans(clusters, n_init=restarts, random_state=seed % 2**32, copy_x=False)
    with threadpool_limits(1), warnings.catch_warnings():
        # Rows that differ by their last bit only may leave a cluster empty; such clusters are dropped below.
        warnings.simplefilter("ignore")
        labels = fitted.fit(rows, sample_weight=totals).labels_
    held = np.bincount(labels, totals, clusters)
    return fitted.cluster_centers_[held > 0].astype(np.float32), held[held > 0]


def density_counts(tree: Tree, radii: Floats) -> Integers:
    """Number of dense regions, of two prototypes or more, at each radius.

    Each point is a region of its own until its nearest neighbour comes into reach; from then on the regions are the
    points born so far less the edges of the tree that are no longer than the radius.
    """
    born = np.searchsorted(np.sort(tree.nearest), radii, side="right")
    merged = np.searchsorted(tree.lengths, radii, side="right")
    return (born - merged).astype(np.int64)


def paper_grid(tree: Tree, steps: int = STEPS) -> Curve:
    """The counts at the ``steps`` + 1 radii of Eq. 8; equal to DBSCAN's on the same distances, at every radius."""
    radii = np.linspace(tree.smallest, tree.largest, steps + 1)
    return Curve(radii, density_counts(tree, radii))


def exact_curve(tree: Tree) -> Curve:
    """Every radius at which the count changes, and the count from there on."""
    radii = np.unique(tree.lengths)
    counts = density_counts(tree, radii)
    changed = np.diff(counts, prepend=0) != 0
    return Curve(radii[changed], counts[changed])


def ppm(tree: Tree, steps: int = STEPS) -> int:
    """The estimate as printed: the largest count on the paper's grid; 1 for a single prototype, 0 for none."""
    return _peak(tree, paper_grid(tree, steps))


def ppm_exact(tree: Tree) -> int:
    """The largest count over all radii, never below ``ppm``; no grid, so an outlier cannot coarsen it."""
    return _peak(tree, exact_curve(tree))


def _peak(tree: Tree, curve: Curve) -> int:
    return min(len(tree), max(1, int(curve.counts.max(initial=0))))


def lloyd_step(z: Points, centres: Points) -> tuple[Floats, Integers]:
    """For each centre (c, d), the sum (c, d) and the number (c,) of the rows of ``z`` (n, d) that are nearest to it.

    Both add up over sites, so rounds of this and ``moved`` are K-means on everybody's rows. Of equally near centres
    the first takes a row.
    """
    sums, counts = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    middle = centres.mean(axis=0, dtype=np.float64)  # what rows and centres share would only cost digits
    placed = centres - middle
    squares = (placed**2).sum(axis=1)
    for start in range(0, len(z), CHUNK):
        rows = z[start : start + CHUNK].astype(np.float64)
        nearest = (squares - 2 * (rows - middle) @ placed.T).argmin(axis=1)
        np.add.at(sums, nearest, rows)
        counts += np.bincount(nearest, minlength=len(centres))
    return sums, counts


def moved(sums: Floats, counts: Integers, centres: Points) -> Floats:
    """The centres after a step whose sums and counts were added up; one that nobody is near stays where it is."""
    held = counts[:, None] > 0
    return np.where(held, sums / np.maximum(counts, 1)[:, None], centres)
