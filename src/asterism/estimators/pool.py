"""What every estimator reads and gives: a pool of prototypes, an estimate, and what it was chosen from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from asterism.config import Section
from asterism.distances import Floats, Integers, Mask, Points
from asterism.errors import AsterismError
from asterism.prototypes import Curve
from asterism.spanning import Tree
from asterism.spanning import tree as spanning_tree


@dataclass(frozen=True)
class Pool:
    """All prototypes (n, d) that sites sent, and the sizes (n,) of their clusters; ``grow`` makes their tree.

    ``known`` (C^L, d) are the known classes' prototypes, which some methods cannot do without: the rows of the head,
    or true class means. ``seed`` is that of every draw a method makes.
    """

    prototypes: Points
    sizes: Integers
    grow: Callable[[], Tree]
    known: Points | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        prototypes: Points,
        sizes: Integers | None = None,
        device: str = "cpu",
        *,
        known: Points | None = None,
        seed: int = 0,
    ) -> Pool:
        """The pool of these prototypes, of equal sizes where none are given."""
        sizes = np.ones(len(prototypes), np.int64) if sizes is None else sizes
        return cls(prototypes, sizes, lambda: spanning_tree(prototypes, device=device), known, seed)

    @cached_property
    def tree(self) -> Tree:
        """The smallest spanning tree, grown when it is first asked for."""
        return self.grow()

    def labelled(self, method: str) -> Points:
        """The known classes' prototypes, or an error that says that ``method`` needs them."""
        if self.known is None or not len(self.known):
            raise AsterismError(
                f"{method} needs prototypes of known classes, and there are none",
                where="known",
                fix="give them (--known FILE), or choose a method that needs none, such as ppm",
            )
        if self.known.shape[1] != self.prototypes.shape[1]:
            raise AsterismError(
                f"known prototypes have {self.known.shape[1]} columns, features {self.prototypes.shape[1]}",
                where="known",
                fix="take both from the same model",
            )
        return self.known


class Search(NamedTuple):
    """The candidates that a method weighed: numbers of ``classes``, ascending, and the ``scores`` of each.

    ``near`` is the smallest and the largest candidate that scores nearly as well as the best: how far the score alone
    leaves the answer open.
    """

    classes: Integers
    scores: Floats
    near: tuple[int, int]

    @classmethod
    def of(cls, classes: Integers, scores: Floats, nearly: Mask) -> Search:
        """The search whose candidates marked ``nearly`` (n,) are as good as the best."""
        return cls(classes, scores, (int(classes[nearly].min()), int(classes[nearly].max())))

    def as_json(self) -> dict[str, list[float]]:
        """All of it as plain values."""
        return {"classes": self.classes.tolist(), "score": self.scores.tolist(), "near": list(self.near)}


@dataclass(frozen=True)
class Counted:
    """An estimate, and what it was chosen from: counts by radius, or candidates by score, where the method has such."""

    count: int
    curve: Curve | None = None
    search: Search | None = None


@dataclass(frozen=True)
class Estimator:
    """One method: its settings, how it counts, and what it is in a few words.

    ``by_radius`` says that it reads its count off the number of dense regions at each radius.
    """

    params: type[Section]
    count: Callable[[Pool, Any], Counted]
    about: str
    by_radius: bool = False
    needs_known: bool = False
