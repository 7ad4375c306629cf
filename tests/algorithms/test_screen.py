"""Novel class data filtering in a federation: what stays at the sites, what leaves them, and that it works."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from asterism import memory, screening
from asterism.algorithms.known import Known
from asterism.algorithms.represent import represented
from asterism.algorithms.screen import (
    TASKS,
    LocalScreen,
    Screened,
    Screening,
    held_out,
    known_parts,
    screening_flow,
)
from asterism.data.images import ImageSet
from asterism.data.split import KNOWN
from asterism.errors import AsterismError
from asterism.flow import Answer, Ask, Collect, State, Sum, Tensors, Total
from asterism.runs.inprocess import InProcess
from asterism.screening import SCORES
from asterism.site import Share, Site
from asterism.training import Train
from asterism.worker import Worker
from tests.synthetic import Tiny, copied, pictures, same_bits

STAGE = "novel-1"
NAMES = ("site-0", "site-1", "site-2")
ON = Screening(filter=True)


@cache
def trained() -> tuple[Worker, State, ImageSet]:
    """A network that three participants taught three of the four patterns, and all images."""
    images = pictures(60)
    shares = {name: torch.arange(k, 180, 3) for k, name in enumerate(NAMES)}
    tiny = Tiny(known=Known(rounds=8), train=Train(batch=16, local_epochs=2, lr=0.05), images=images, shares=shares)
    return tiny.worker, replace(tiny.run(), stage=STAGE, round=0), images


def thirds_of(start: int, end: int) -> dict[str, Tensor]:
    return {name: torch.arange(start + k, end, 3) for k, name in enumerate(NAMES)}


@dataclass
class Fleet:
    """The trained federation before its novel stage; ``shares`` by stage and participant."""

    shares: dict[str, dict[str, Tensor]] = field(
        default_factory=lambda: {KNOWN: thirds_of(0, 180), STAGE: thirds_of(180, 240)}
    )
    stores: dict[str, dict[str, Tensors]] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    targets: Tensor | None = None

    def site(self, name: str) -> Site:
        worker, _, images = trained()
        targets = images.labels if self.targets is None else self.targets

        def share(stage: str) -> Share:
            return Share(images, targets, self.shares[stage].get(name, torch.empty(0, dtype=torch.int64)))

        return Site(name, share, self.stores.setdefault(name, {}), worker)

    def answer(self, ask: Ask) -> Answer:
        self.asks.append(ask)
        return InProcess(self.site, NAMES, TASKS).answer(ask)

    def screen(self, p: Screening, *, seed: int = 5, stage: str = STAGE, known: int = 3) -> Screened:
        state = replace(trained()[1], stage=stage)
        result = finished(screening_flow(state, NAMES, p, seed=seed, known=known), self.answer)
        assert result is not None
        return result


def finished(flow: Generator[Sum, Total, Screened | None], answer: Callable[[Ask], Any]) -> Screened | None:
    try:
        ask = next(flow)
        while True:
            ask = flow.send(answer(ask))
    except StopIteration as end:
        result: Screened | None = end.value
        return result


def with_score(name: str, **settings: Any) -> Screening:
    given = {"filter": True, "score": name, "false_alarm": 0.1, "mixture": 1.0, "neighbours": 3, **settings}
    return Screening.model_validate(given)


def local(p: Screening, **changes: Any) -> LocalScreen:
    return LocalScreen.model_validate({"screening": p, "seed": 5, "stage": STAGE, "known": 3, "met": 3, **changes})


def test_the_papers_tables_are_without_a_filter_and_ask_nothing() -> None:
    fleet = Fleet()
    assert finished(screening_flow(trained()[1], NAMES, Screening(), seed=5, known=3), fleet.answer) is None
    assert fleet.asks == [] and fleet.stores == {}


def test_defaults_are_the_papers() -> None:
    p = Screening()
    assert (p.score, p.threshold, p.false_alarm, p.mixture) == ("cosine", 0.5, None, 0.0)


def test_a_false_alarm_replaces_the_papers_threshold() -> None:
    p = Screening(false_alarm=0.05)
    assert p.threshold is None
    assert Screening.model_validate(p.model_dump(mode="json", exclude_none=True)) == p
    assert Screening.model_validate_json(p.model_dump_json()) == p


@pytest.mark.parametrize(
    "given",
    [
        {"threshold": 0.5, "false_alarm": 0.1},
        {"threshold": None},
        {"score": "energy"},
        {"score": "mahalanobis", "threshold": 0.5},
        {"threshold": 1.5},
        {"false_alarm": 1.0},
        {"capacity": 0},
        {"mixture": -1.0},
        {"threshhold": 0.3},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Screening.model_validate(given)


@pytest.mark.parametrize("score", SCORES)
def test_every_score_tells_an_unseen_pattern_from_the_learned_ones(score: str) -> None:
    result = Fleet().screen(with_score(score))
    assert result.auroc is not None and result.auroc > 0.8
    assert result.detection.recall is not None and result.detection.recall > 0.5


def test_the_filter_is_equation_5_of_the_known_rows() -> None:
    fleet = Fleet()
    result = fleet.screen(ON.model_copy(update={"threshold": 0.9, "mixture": 1.0}))
    worker, state, images = trained()
    worker.load(state.tensors)
    prototypes = worker.network.prototypes.detach()[:3]
    for name in NAMES:
        site = fleet.site(name)
        found, known = memory.novel_share(site, STAGE), memory.pseudo_labelled(site, STAGE)
        for rows, below in ((found.indices, True), (known.indices, False)):
            for row in rows.tolist():
                z = represented(worker, Share(images, images.labels, torch.tensor([row])))[0]
                largest = max(float(z @ p / (z.norm() * p.norm())) for p in prototypes)
                assert (largest < 0.9) is below
    assert 0 < result.flagged < result.images


def test_the_filter_keeps_an_image_that_lies_at_the_threshold() -> None:
    worker, state, images = trained()
    worker.load(state.tensors)
    z = represented(worker, Share(images, images.labels, torch.tensor([180])))
    at = float(screening.largest_cosine(z, worker.network.prototypes.detach()[:3]))
    lone = {KNOWN: thirds_of(0, 180), STAGE: {"site-0": torch.tensor([180])}}
    p = ON.model_copy(update={"threshold": at})
    assert Fleet(lone).screen(p).flagged == 0
    assert Fleet(lone).screen(p.model_copy(update={"threshold": at + 1e-4})).flagged == 1


def test_taken_for_known_means_labelled_by_the_known_head() -> None:
    fleet = Fleet()
    fleet.screen(with_score("neighbour"))
    worker, state, _ = trained()
    worker.load(state.tensors)
    right = total = 0
    for name in NAMES:
        site = fleet.site(name)
        share = memory.pseudo_labelled(site, STAGE)
        labels, truth = share.targets[share.indices], site.share(STAGE).targets[share.indices]
        logits = represented(worker, share) @ worker.network.prototypes.detach()[:3].T
        confidence = logits.softmax(dim=1).amax(dim=1)
        assert torch.equal(labels, logits.argmax(dim=1))
        sure = memory.pseudo_labelled(site, STAGE, 0.9)
        assert set(sure.indices.tolist()) == set(share.indices[confidence >= 0.9].tolist())
        known = truth < 3
        right, total = right + int((labels == truth)[known].sum()), total + int(known.sum())
    assert right / total > 0.9


@pytest.mark.parametrize("score", SCORES)
def test_calibration_keeps_the_false_alarms_it_was_told(score: str) -> None:
    result = Fleet().screen(with_score(score, false_alarm=0.2, held_out=0.5, mixture=2.0))
    assert result.detection.false_alarm is not None
    # 90 images to calibrate with and 45 in the stream: three standard deviations
    assert result.detection.false_alarm == pytest.approx(0.2, abs=3 * (0.16 * (1 / 90 + 1 / 45)) ** 0.5)


def test_federated_calibration_is_the_central_quantile_to_a_bin() -> None:
    fleet, p = Fleet(), with_score("cosine", false_alarm=0.3)
    result = fleet.screen(p)
    worker, state, images = trained()
    worker.load(state.tensors)
    held = torch.cat([known_parts(fleet.site(name), local(p)).held_out for name in NAMES])
    scores = screening.largest_cosine(
        represented(worker, Share(images, images.labels, held)), worker.network.prototypes.detach()[:3]
    )
    width = 2 / screening.BINS
    assert float((scores < result.threshold - width).float().mean()) <= 0.3
    assert float((scores < result.threshold + width).float().mean()) >= 0.3


def test_federated_discriminant_is_the_central_one() -> None:
    fleet, p = Fleet(), with_score("mahalanobis")
    fleet.screen(p)
    worker, state, images = trained()
    worker.load(state.tensors)
    rows = torch.cat([known_parts(fleet.site(name), local(p)).compared for name in NAMES])
    z = torch.nn.functional.normalize(represented(worker, Share(images, images.labels, rows)))
    means, precision = screening.discriminant(screening.class_statistics(z, images.labels[rows], 3), p.shrinkage)
    sent = fleet.asks[-1].tensors
    torch.testing.assert_close(sent["means"], means, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sent["precision"], precision, atol=1e-3, rtol=1e-5)


def test_auroc_of_the_federation_is_that_of_all_images_together() -> None:
    fleet, p = Fleet(), ON.model_copy(update={"mixture": 1.0})
    result = fleet.screen(p)
    worker, state, images = trained()
    worker.load(state.tensors)

    def scores(rows: Tensor) -> Tensor:
        z = represented(worker, Share(images, images.labels, rows))
        return screening.largest_cosine(z, worker.network.prototypes.detach()[:3])

    known = torch.cat([known_parts(fleet.site(name), local(p)).streamed for name in NAMES])
    central = screening.auroc(scores(known), scores(torch.arange(180, 240)))
    assert result.auroc == pytest.approx(central, abs=2e-3)
    assert (sum(result.known_scores), sum(result.novel_scores)) == (60, 60)
    assert result.images == 120 and result.participants == 3


def test_only_sums_are_asked_and_only_counts_answered() -> None:
    fleet = Fleet()
    fleet.screen(with_score("neighbour"))
    assert [ask.task for ask in fleet.asks] == ["screen-calibrate", "screen"]
    assert not any(isinstance(ask, Collect) for ask in fleet.asks)
    assert set(fleet.asks[-1].tensors) == {"parameters", "buffers", "counters"}
    reply = TASKS["screen"](fleet.site("site-0"), fleet.asks[-1].tensors, fleet.asks[-1].options)
    assert set(reply.tensors) == {"known_scores", "novel_scores"}
    assert all(torch.equal(value, value.round()) for value in reply.tensors.values())


def test_without_true_classes_nothing_is_said_about_them() -> None:
    result = Fleet(targets=torch.full((240,), -1)).screen(ON.model_copy(update={"threshold": 0.95}))
    assert result.flagged > 0 and result.images == 60
    assert result.detection == screening.Detection(None, None, None)
    assert result.auroc is None and not any(result.known_scores) and not any(result.novel_scores)


@pytest.mark.parametrize("score", SCORES)
def test_the_same_seed_screens_the_same_and_leaves_everything_else_as_it_was(score: str) -> None:
    _, state, images = trained()
    before, pixels = copied(state.tensors), images.pixels.clone()
    p = with_score(score, capacity=4, eviction="random")
    one, again, other = Fleet(), Fleet(), Fleet()
    assert one.screen(p) == again.screen(p) == one.screen(p)  # the third finds a memory and fills it anew
    other.screen(p, seed=6)
    stores = [fleet.stores["site-0"] for fleet in (one, again, other)]
    assert all(same_bits(stores[0][key], stores[1][key]) for key in stores[0])
    assert not torch.equal(stores[0]["memory/novel-1"]["rows"], stores[2]["memory/novel-1"]["rows"])
    assert same_bits(state.tensors, before) and torch.equal(images.pixels, pixels)


def test_memory_of_one_image_holds_one() -> None:
    fleet = Fleet()
    result = fleet.screen(Screening(filter=True, threshold=1.0, capacity=1, eviction="least-novel"))
    assert (result.flagged, result.held) == (60, 3)
    held = memory.from_tensors(fleet.stores["site-0"]["memory/novel-1"])
    assert (held.seen, held.flagged, len(held)) == (20, 20, 1)


@pytest.mark.parametrize("score", SCORES)
def test_participants_without_images_and_with_one_take_part(score: str) -> None:
    fleet = Fleet(
        {
            KNOWN: {"site-0": torch.arange(0, 180, 2), "site-1": torch.tensor([1])},
            STAGE: {"site-1": torch.tensor([200]), "site-2": torch.tensor([180])},
        }
    )
    result = fleet.screen(with_score(score, mixture=0.0))
    assert (result.images, result.participants) == (2, 3)
    assert result.detection.recall is not None and result.detection.false_alarm is None
    assert len(memory.novel_share(fleet.site("site-0"), STAGE)) == 0


def test_who_has_no_known_image_of_its_own_calls_everything_far_away() -> None:
    fleet = Fleet({KNOWN: {}, STAGE: thirds_of(180, 240)})
    assert fleet.screen(Screening(filter=True, score="neighbour", threshold=-1.9)).flagged == 60


def test_no_novel_image_at_all_is_an_answer() -> None:
    fleet = Fleet()
    result = fleet.screen(ON.model_copy(update={"threshold": -1.0}))
    assert (result.flagged, result.held, result.detection.recall) == (0, 0, 0.0)
    assert len(memory.novel_share(fleet.site("site-1"), STAGE)) == 0


def test_a_federation_without_images_has_found_nothing() -> None:
    result = Fleet({KNOWN: {}, STAGE: {}}).screen(ON)
    assert (result.images, result.flagged, result.auroc) == (0, 0, None)


@pytest.mark.parametrize("score", ["mahalanobis", "cosine"])
def test_calibration_without_any_known_image_says_what_to_do(score: str) -> None:
    with pytest.raises(AsterismError, match="known images to measure the scores with"):
        Fleet({KNOWN: {}, STAGE: thirds_of(180, 240)}).screen(with_score(score))


def test_parts_of_the_known_share_have_no_image_in_common() -> None:
    fleet = Fleet()
    for mixture, streamed in ((0.0, 0), (1.0, 20), (9.0, 24)):
        parts = known_parts(fleet.site("site-0"), local(with_score("cosine", mixture=mixture)))
        pieces = (parts.held_out, parts.streamed, parts.compared)
        assert [len(piece) for piece in pieces] == [12, streamed, 48 - streamed]
        assert torch.equal(torch.cat(pieces).sort().values, torch.arange(0, 180, 3))
        assert torch.equal(parts.held_out, held_out(fleet.site("site-0").share(KNOWN), 0.2, 5, "site-0")[1])


def test_participants_hold_out_by_draws_of_their_own() -> None:
    share = Fleet().site("site-0").share(KNOWN)
    assert not torch.equal(held_out(share, 0.5, 5, "site-0")[1], held_out(share, 0.5, 5, "site-1")[1])


@pytest.mark.parametrize("score", SCORES)
def test_head_rows_past_the_known_ones_are_not_looked_at(score: str) -> None:
    worker, state, _ = trained()
    changed = copied(state.tensors)
    changed["parameters"][-worker.layout.features :] = 50.0
    results = [
        finished(
            screening_flow(replace(state, tensors=tensors), NAMES, with_score(score), seed=5, known=3), Fleet().answer
        )
        for tensors in (state.tensors, changed)
    ]
    assert results[0] == results[1]


def test_what_is_held_out_is_the_same_in_every_stage_and_grows_with_its_fraction() -> None:
    fleet, p = Fleet(), with_score("cosine")
    fleet.shares["novel-2"] = fleet.shares[STAGE]
    first, second = (known_parts(fleet.site("site-1"), local(p, stage=stage)) for stage in (STAGE, "novel-2"))
    assert torch.equal(first.held_out, second.held_out)
    assert not torch.equal(first.streamed, second.streamed)
    more = held_out(fleet.site("site-1").share(KNOWN), 0.5, 5, "site-1")[1]
    assert set(first.held_out.tolist()) < set(more.tolist())


@pytest.mark.parametrize("score", ["neighbour", "mahalanobis"])
def test_a_later_stage_knows_what_an_earlier_one_found(score: str) -> None:
    fleet, p = Fleet(), with_score(score, mixture=0.0, false_alarm=None, threshold=0.0)
    fleet.screen(p)  # everything is novel at 0
    half = {name: rows[::2] for name, rows in fleet.shares[STAGE].items()}
    fleet.shares["novel-2"] = half
    calibrated = with_score(score, mixture=0.0, false_alarm=0.05)
    strict = fleet.screen(calibrated, stage="novel-2", known=4)
    alone = Fleet({KNOWN: fleet.shares[KNOWN], "novel-2": half}).screen(calibrated, stage="novel-2", known=4)
    assert strict.flagged < alone.flagged


def test_truth_follows_the_classes_met_where_rows_were_estimated() -> None:
    state = trained()[1]
    fleet = Fleet()
    p = ON.model_copy(update={"threshold": 1.0})
    by_rows = finished(screening_flow(state, NAMES, p, seed=5, known=4), fleet.answer)
    by_classes = finished(screening_flow(state, NAMES, p, seed=5, known=4, met=3), fleet.answer)
    assert by_rows is not None and by_classes is not None
    assert (sum(by_rows.novel_scores), sum(by_classes.novel_scores)) == (0, 60)
