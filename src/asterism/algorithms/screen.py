"""Novel class data filtering, the first half of a novel stage (Sec. 3.2, Eq. 5 and the loop of Algorithm 2).

Each participant looks at its unlabelled images with the federation's model; those that resemble nothing known enter
its data memory M^k, the others get the known class that the model sees in them. Only counts leave a site, and, for
the Mahalanobis score alone, class sums of representations. Departures: four further scores, and a threshold r that
may be calibrated on known images instead of given. Needs known images of its own only for those two.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from asterism import memory, screening
from asterism.algorithms.represent import representations, represented
from asterism.config import Section
from asterism.data.split import KNOWN
from asterism.errors import AsterismError
from asterism.evaluation import labelled
from asterism.flow import Ask, Options, Reply, State, Sum, Tensors, Total
from asterism.screening import SCORES, Detection, Reference, edges, histogram
from asterism.seeds import generator
from asterism.site import Share, Site, Task


class Screening(Section):
    """Novel class data filtering. Defaults are the paper's; its tables are without it."""

    filter: bool = False
    score: Literal["cosine", "max-logit", "energy", "neighbour", "mahalanobis"] = "cosine"
    threshold: float | None = 0.5  # r, Eq. 5; below it an image is novel
    false_alarm: Annotated[float, Field(gt=0, lt=1)] | None = None  # instead of r: share of known images called novel
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of a site's known images kept for that calibration
    capacity: Annotated[int, Field(ge=1)] = 10_000  # images of a site's data memory
    eviction: memory.Eviction = "oldest"
    mixture: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # known images streamed per novel one (simulated)
    neighbours: Annotated[int, Field(ge=1)] = 1  # k of "neighbour"; well below the images of a class at one site
    temperature: Annotated[float, Field(gt=0)] = 1.0  # T of "energy"
    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.3  # of the covariance of "mahalanobis"

    @model_validator(mode="before")
    @classmethod
    def _the_papers_threshold_is_a_cosine(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "threshold" in given:
            return given
        if given.get("false_alarm") is not None or given.get("score", "cosine") != "cosine":
            return {**given, "threshold": None}
        return given

    @model_validator(mode="after")
    def _has_one_threshold(self) -> Screening:
        if (self.threshold is None) == (self.false_alarm is None):
            raise ValueError(f"score {self.score!r} needs a threshold of its own or a false_alarm, and not both")
        low, high = SCORES[self.score].low, SCORES[self.score].high
        if self.threshold is not None and not low <= self.threshold <= high:
            raise ValueError(f"threshold {self.threshold}: score {self.score!r} lies between {low:g} and {high:g}")
        return self


class LocalScreen(Section):
    """What a participant needs to know to screen its images."""

    screening: Screening
    seed: int
    stage: str
    known: int  # head rows before this stage
    met: int  # true classes before this stage, to count what was found where the truth is known


@dataclass(frozen=True)
class Screened:
    """What a federation's screening came to; what needs true classes is None or empty where nobody knows them."""

    threshold: float
    participants: int  # that answered; another one learns from its whole share
    images: int
    flagged: int  # images called novel; 0: there is nothing to learn
    held: int  # images in the data memories
    detection: Detection
    auroc: float | None  # exact to the width of a histogram's bin
    known_scores: tuple[int, ...]  # histograms over screening.edges, of truly known and truly novel images
    novel_scores: tuple[int, ...]


def screening_flow(
    state: State, everyone: Sequence[str], p: Screening, *, seed: int, known: int, met: int | None = None
) -> Generator[Sum, Total, Screened | None]:
    """The part of a novel stage that fills the data memories; None, and no ask, where the filter is off.

    Args:
        state: the model to screen with, at the stage whose images are screened.
        everyone: all participants.
        p: the settings.
        seed: of the run.
        known: head rows before this stage, those of earlier novel classes included.
        met: true classes before this stage, where that is another number (earlier stages estimated theirs).
    """
    if not p.filter:
        return None
    met = known if met is None else met
    local = LocalScreen(screening=p, seed=seed, stage=state.stage, known=known, met=met)
    options: Options = {"local": local.model_dump_json()}
    participants, r = tuple(everyone), p.threshold
    tensors = {name: state.tensors[name] for name in ("parameters", "buffers", "counters")}
    if p.score == "mahalanobis":
        total = yield Sum(participants, "screen-statistics", tensors, state.version, options)
        means, precision = screening.discriminant(_something(total), p.shrinkage)
        tensors |= {"means": means, "precision": precision}
    if p.false_alarm is not None:
        total = yield Sum(participants, "screen-calibrate", tensors, state.version, options)
        counts = _something(total)["scores"].cpu()
        r = screening.histogram_threshold(counts, edges(SCORES[p.score]), p.false_alarm)
    assert r is not None  # one of the two is set, by validation
    total = yield Sum(participants, "screen", tensors, state.version, {**options, "threshold": r})  # Eq. 5
    return _summary(total, r)


def figures(ask: Ask, total: Total) -> dict[str, float | None]:
    """What the answer to the order to screen comes to beside its counts; None where nobody could know."""
    found = _summary(total, float(ask.options["threshold"]))
    return {
        "threshold": found.threshold,
        "images": float(found.images),
        "novelty_rate": found.flagged / found.images if found.images else None,
        "auroc": found.auroc,
    }


def _something(total: Total) -> Tensors:
    if total.weight == 0:
        failed = "".join(f"; {failure.participant} failed: {failure.detail}" for failure in total.failures[:1])
        raise AsterismError(
            f"no participant gave known images to measure the scores with{failed}",
            where="screening",
            fix='a threshold of your own, with score "cosine", "max-logit" or "energy"',
        )
    return total.tensors


def _summary(total: Total, threshold: float) -> Screened:
    def count(name: str) -> float:
        return total.metrics.get(name, 0.0)

    known, novel = (total.tensors.get(name, torch.empty(0)).cpu() for name in ("known_scores", "novel_scores"))
    return Screened(
        threshold=threshold,
        participants=total.replies,
        images=int(count("images")),
        flagged=int(count("flagged")),
        held=int(count("held")),
        detection=screening.detected(count("novel_flagged"), count("novel"), count("known_flagged"), count("known")),
        auroc=screening.histogram_auroc(known, novel),
        known_scores=tuple(known.long().tolist()),
        novel_scores=tuple(novel.long().tolist()),
    )


@dataclass(frozen=True)
class KnownParts:
    """A participant's known images in three parts without an image in common."""

    held_out: Tensor  # to calibrate the threshold with
    streamed: Tensor  # mixed into the stream of a simulation
    compared: Tensor  # what a score may compare images with


def known_parts(site: Site, p: LocalScreen) -> KnownParts:
    """The participant's known images divided by named draws; what is held out is the same in every stage."""
    rest, held = held_out(site.share(KNOWN), p.screening.held_out, p.seed, site.name)
    mixed = rest[_order(len(rest), p.seed, "mixture", p.stage, site.name).to(rest.device)]
    # Half stays, or a score that compares with known images would have none left.
    streamed = min(round(p.screening.mixture * len(site.share(p.stage))), len(rest) // 2)
    return KnownParts(held, mixed[:streamed], mixed[streamed:])


def held_out(share: Share, fraction: float, seed: int, site: str) -> tuple[Tensor, Tensor]:
    """A share's image rows in two parts, the second holding about a ``fraction`` of them, by a draw of their own."""
    rows = share.indices[_order(len(share), seed, "held-out", site).to(share.indices.device)]
    kept = len(rows) - round(fraction * len(rows))
    return rows[:kept], rows[kept:]


def _order(count: int, seed: int, *purpose: str) -> Tensor:
    return torch.randperm(count, generator=generator(seed, *purpose))


def statistics(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Class sums of unit-norm representations: known images by label, earlier finds by their nearest head row."""
    p = LocalScreen.model_validate_json(str(options["local"]))
    site.worker.load(tensors)
    share = replace(site.share(KNOWN), indices=known_parts(site, p).compared)
    share = replace(share, indices=labelled(share))
    found = [represented(site.worker, earlier) for earlier in memory.earlier_shares(site, p.stage)]
    z = torch.cat([represented(site.worker, share), *found])
    if len(z) == 0:
        return Reply({}, weight=0.0)
    unit = normalize(z)
    rows = normalize(site.worker.network.prototypes[: p.known].detach())
    labels = torch.cat([share.targets[share.indices], (unit[len(share) :] @ rows.T).argmax(dim=1)])
    return Reply(screening.class_statistics(unit, labels, p.known), metrics={"samples": float(len(z))})


def calibrate(site: Site, tensors: Tensors, options: Options) -> Reply:
    """The histogram of scores of the participant's held-out known images."""
    p = LocalScreen.model_validate_json(str(options["local"]))
    parts = known_parts(site, p)
    if len(parts.held_out) == 0:
        return Reply({}, weight=0.0)
    site.worker.load(tensors)
    score = SCORES[p.screening.score]
    z = represented(site.worker, replace(site.share(KNOWN), indices=parts.held_out))
    scores = score.of(z, reference(site, tensors, p, parts.compared))
    return Reply({"scores": histogram(scores, edges(score))}, metrics={"samples": float(len(scores))})


def screen(site: Site, tensors: Tensors, options: Options) -> Reply:
    """Fills the participant's data memory with what looks novel, and answers in counts.

    Every order begins with an empty memory: the same order twice leaves the same memory.
    """
    p = LocalScreen.model_validate_json(str(options["local"]))
    parts = known_parts(site, p)
    unlabelled = site.share(p.stage)
    rows = torch.cat([unlabelled.indices, parts.streamed])
    rows = rows[_order(len(rows), p.seed, "stream", p.stage, site.name).to(rows.device)]
    site.worker.load(tensors)
    compared, head = reference(site, tensors, p, parts.compared), site.worker.network.prototypes[: p.known].detach()
    looked = [
        (SCORES[p.screening.score].of(z, compared), *pseudo_labels(z, head))
        for z in representations(site.worker, replace(unlabelled, indices=rows))
    ]
    scores, labels, confidence = (torch.cat(part) for part in zip(*looked, strict=True))
    novel = screening.is_novel(scores, float(options["threshold"]))
    filled = memory.add(
        memory.empty(), rows, scores, novel,
        capacity=p.screening.capacity, eviction=p.screening.eviction,
        rng=generator(p.seed, "memory", p.stage, site.name),
    )  # fmt: skip
    memory.keep(site, p.stage, filled, rows[~novel], labels[~novel], confidence[~novel])
    if len(rows) == 0:
        return Reply({}, weight=0.0)
    counts, histograms = account(scores, novel, unlabelled.targets[rows], p)
    return Reply(histograms, metrics={**counts, "held": float(len(filled))})


def account(
    scores: Tensor, novel: Tensor, targets: Tensor, p: LocalScreen
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Counts that add up over participants, and the histograms of truly known and truly novel images.

    Images of which nobody knows the class count as images alone, so at a real site the histograms are zeros.
    """
    bounds = edges(SCORES[p.screening.score])
    counts = {"images": float(len(scores)), "flagged": float(novel.sum())}
    histograms = {}
    for kind, truly in (("known", (targets >= 0) & (targets < p.met)), ("novel", targets >= p.met)):
        counts |= {kind: float(truly.sum()), f"{kind}_flagged": float((novel & truly).sum())}
        histograms[f"{kind}_scores"] = histogram(scores[truly], bounds)
    return counts, histograms


def pseudo_labels(z: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """The known class that the head sees in each image, and how probable it takes it to be."""
    confidence, labels = (z @ head.T).softmax(dim=1).max(dim=1)
    return labels, confidence


def reference(site: Site, tensors: Tensors, p: LocalScreen, compared: Tensor) -> Reference:
    """What the participant compares images with; known representations are computed only for the score that asks."""
    prototypes = site.worker.network.prototypes[: p.known].detach()
    if p.screening.score == "mahalanobis":
        means, precision = (tensors[name].to(site.worker.device) for name in ("means", "precision"))
        return Reference(prototypes, means=means, precision=precision)
    if p.screening.score != "neighbour":
        return Reference(prototypes, temperature=p.screening.temperature)
    shares = [replace(site.share(KNOWN), indices=compared), *memory.earlier_shares(site, p.stage)]
    bank = torch.cat([represented(site.worker, share) for share in shares])
    return Reference(prototypes, bank=bank, neighbours=p.screening.neighbours)


TASKS: Mapping[str, Task] = {
    "screen-statistics": statistics,
    "screen-calibrate": calibrate,
    "screen": screen,
}
