"""Telling novel images from known ones: scores, the threshold r, and what they are worth. Larger = more known.

Every score is a function of representations and of what is known, ``Reference``. Paper: the largest cosine (Eq. 5).
What needs numbers from several participants (class statistics, histograms) adds up, so that a ``Sum`` suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

BINS = 2048
SMALLEST_VARIANCE = 1e-6  # of unit-norm representations, so that a covariance of zero can be inverted


def _nothing() -> Tensor:
    return torch.empty(0, 0)


@dataclass(frozen=True, eq=False)
class Reference:
    """What images are compared with; each score looks at its own part."""

    prototypes: Tensor = field(default_factory=_nothing)  # head rows of every class met so far
    temperature: float = 1.0  # of the energy
    bank: Tensor = field(default_factory=_nothing)  # (n, d), known representations that stay at their site
    neighbours: int = 1
    means: Tensor = field(default_factory=_nothing)  # (c, d), of unit-norm representations
    precision: Tensor = field(default_factory=_nothing)  # (d, d), inverse of their covariance within classes


@dataclass(frozen=True)
class Score:
    """How known representations (n, d) are, as (n,), and the range in which histograms tell scores apart."""

    of: Callable[[Tensor, Reference], Tensor]
    low: float
    high: float


def largest_cosine(z: Tensor, prototypes: Tensor) -> Tensor:
    """Eq. 5: the cosine to the most similar prototype; 0 where either is a vector of zeros."""
    return (normalize(z) @ normalize(prototypes).T).amax(dim=1)


def largest_logit(z: Tensor, prototypes: Tensor) -> Tensor:
    """The largest logit of a bias-free head."""
    return (z @ prototypes.T).amax(dim=1)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T·log Σ exp(logit / T), the negative free energy (Liu et al., 2020)."""
    return temperature * (logits / temperature).logsumexp(dim=1)


def neighbour_similarity(z: Tensor, bank: Tensor, neighbours: int) -> Tensor:
    """Minus the distance to the k-th nearest of the bank, all at unit norm (Sun et al., 2022).

    A bank of fewer than k gives its farthest; an empty one gives −2, as far as unit vectors can be apart.
    """
    if len(bank) == 0:
        return z.new_full((len(z),), -2.0)
    distances = torch.cdist(normalize(z), normalize(bank))
    return -distances.topk(min(neighbours, len(bank)), largest=False).values[:, -1]


def mahalanobis(z: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """Minus the smallest squared distance (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) to a class mean (Lee et al., 2018)."""
    centre = means.mean(dim=0)  # distances do not depend on it; sums near the origin lose fewer digits
    z, means = z - centre, means - centre
    whitened = means @ precision
    squares = ((z @ precision) * z).sum(dim=1, keepdim=True) - 2 * z @ whitened.T + (whitened * means).sum(dim=1)
    return -squares.clamp(min=0).amin(dim=1)


SCORES: Mapping[str, Score] = {
    "cosine": Score(lambda z, known: largest_cosine(z, known.prototypes), -1.0, 1.0),
    "max-logit": Score(lambda z, known: largest_logit(z, known.prototypes), -1e4, 1e4),
    "energy": Score(lambda z, known: energy(z @ known.prototypes.T, known.temperature), -1e4, 1e4),
    "neighbour": Score(lambda z, known: neighbour_similarity(z, known.bank, known.neighbours), -2.0, 0.0),
    "mahalanobis": Score(lambda z, known: mahalanobis(normalize(z), known.means, known.precision), -1e6, 0.0),
}


def is_novel(scores: Tensor, threshold: float) -> Tensor:
    """Eq. 5: whether each score is strictly below r."""
    return scores < threshold


def class_statistics(z: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """Sums (c, d), outer products (d, d) and counts (c,) of representations, in float64; they add up over sites."""
    z = z.double()
    members = one_hot(labels, classes).to(z)
    return {"sums": members.T @ z, "outer": z.T @ z, "counts": members.sum(dim=0)}


def discriminant(total: Mapping[str, Tensor], shrinkage: float) -> tuple[Tensor, Tensor]:
    """Class means, and the inverse of their one covariance within classes, from summed ``class_statistics``.

    Classes of which nobody has an image get no mean. The covariance is drawn by ``shrinkage`` towards a multiple of
    the identity of equal trace.
    """
    present = total["counts"] > 0
    sums, counts = total["sums"][present], total["counts"][present]
    means = sums / counts[:, None]
    within = (total["outer"] - sums.T @ means) / (counts.sum() - len(counts)).clamp(min=1)
    spread = (within.trace() / len(within)).clamp(min=SMALLEST_VARIANCE)
    identity = torch.eye(len(within), dtype=within.dtype, device=within.device)
    precision = torch.linalg.inv((1 - shrinkage) * within + shrinkage * spread * identity)
    return means.float(), precision.float()


def edges(score: Score) -> Tensor:
    """The ``BINS`` + 1 edges of a score's histogram: even over a short range, denser near 0 over a long one."""
    if score.high - score.low <= 2:
        return torch.linspace(score.low, score.high, BINS + 1, dtype=torch.float64)
    ends = math.asinh(score.low), math.asinh(score.high)
    return torch.linspace(*ends, BINS + 1, dtype=torch.float64).sinh()


def histogram(scores: Tensor, bounds: Tensor) -> Tensor:
    """Counts between edges, the lower one included; scores beyond the ends count in the first or last bin."""
    bins = torch.bucketize(scores.double(), bounds[1:-1].to(scores.device), right=True)
    return torch.bincount(bins, minlength=len(bounds) - 1).double()


def calibrated_threshold(known_scores: Tensor, false_alarm: float) -> float:
    """The largest r at which at most a share ``false_alarm`` of the known scores lies strictly below it."""
    allowed = math.floor(false_alarm * len(known_scores) + 1e-9)  # 0.29 · 100 is 28.999…
    return float(known_scores.sort().values[allowed])


def histogram_threshold(counts: Tensor, bounds: Tensor, false_alarm: float) -> float:
    """The same from counts that were summed over participants, exact to the width of one bin."""
    cumulative = counts.double().cumsum(dim=0)
    allowed = false_alarm * float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, allowed, right=True))
    low, high, inside = float(bounds[place]), float(bounds[place + 1]), float(counts[place])
    return high - (high - low) * (float(cumulative[place]) - allowed) / inside


def auroc(known_scores: Tensor, novel_scores: Tensor) -> float | None:
    """The probability that a known image scores higher than a novel one, ties as one half; None without either."""
    values, place = torch.unique(torch.cat([known_scores, novel_scores]), return_inverse=True)
    known, novel = place.split([len(known_scores), len(novel_scores)])
    return histogram_auroc(torch.bincount(known, minlength=len(values)), torch.bincount(novel, minlength=len(values)))


def histogram_auroc(known: Tensor, novel: Tensor) -> float | None:
    """The same from counts over common bins in ascending order; scores of one bin are ties."""
    known, novel = known.double(), novel.double()
    pairs = float(known.sum() * novel.sum())
    if pairs == 0:
        return None
    return float((known * (novel.cumsum(dim=0) - novel / 2)).sum()) / pairs


@dataclass(frozen=True)
class Detection:
    """How well a threshold tells novel from known; None where there was nothing to count."""

    recall: float | None  # share of novel images called novel
    precision: float | None  # share of novel images among those called novel
    false_alarm: float | None  # share of known images called novel


def detected(novel_flagged: float, novel: float, known_flagged: float, known: float) -> Detection:
    """The detection behind four counts, which may be sums over participants."""
    return Detection(
        recall=_share(novel_flagged, novel),
        precision=_share(novel_flagged, novel_flagged + known_flagged),
        false_alarm=_share(known_flagged, known),
    )


def detection(scores: Tensor, novel: Tensor, threshold: float) -> Detection:
    """The detection by a threshold, given which images are truly ``novel``."""
    flagged = is_novel(scores, threshold)
    counts = (flagged & novel).sum(), novel.sum(), (flagged & ~novel).sum(), (~novel).sum()
    return detected(*(float(count) for count in counts))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
