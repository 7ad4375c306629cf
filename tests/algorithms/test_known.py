"""Known class learning at a client and around it: turned pictures, upright rows, weights of replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asterism.algorithms.known import TURNS, Known, known_step, train_locally, turned, upright
from asterism.algorithms.local import Local
from asterism.data.augment import augment
from asterism.federated import FEDERATED, Federation
from asterism.flow import Options, Reply, State, Sum, Tensors
from asterism.losses import known_class_loss
from asterism.runs.inprocess import InProcess
from asterism.seeds import generator
from asterism.site import Site
from tests.synthetic import Tiny, same_bits, thirds

ROTATIONS = Known(rounds=2, rotations=True)


def images(count: int = 40, side: int = 3) -> Tensor:
    return torch.rand(count, 1, side, side, generator=generator(1, "images"))


def ordered(tiny: Tiny) -> tuple[Sum, Local]:
    ask = next(tiny.flow(tiny.start))
    assert isinstance(ask, Sum)
    return ask, Local.model_validate_json(str(ask.options["local"]))


@given(st.integers(1, 30), st.integers(1, 9), st.floats(0, 1), st.integers(0, 999))
@settings(max_examples=50, deadline=None)
def test_a_label_tells_class_and_turn_of_its_image(count: int, classes: int, rate: float, seed: int) -> None:
    pixels = images(count)
    labels = torch.randint(classes, (count,), generator=generator(seed, "labels"))
    results, names = turned(pixels, labels, classes, rate, generator(seed, "turn"))
    for image, label, result, name in zip(pixels, labels.tolist(), results, names.tolist(), strict=True):
        turn = name // classes
        assert name == turn * classes + label and 0 <= turn < TURNS
        assert torch.equal(result, torch.rot90(image, turn, (1, 2)))


def test_at_rate_0_nothing_is_turned_and_at_rate_1_everything() -> None:
    pixels, labels = images(), torch.arange(40) % 5
    results, names = turned(pixels, labels, 5, 0.0, generator(1, "turn"))
    assert torch.equal(results, pixels) and torch.equal(names, labels)
    results, names = turned(pixels, labels, 5, 1.0, generator(1, "turn"))
    assert (names >= 5).all() and set((names // 5).tolist()) == {1, 2, 3}
    assert not (results == pixels).flatten(1).all(dim=1).any()


def test_a_share_of_the_images_is_turned() -> None:
    _, names = turned(images(3000), torch.zeros(3000, dtype=torch.int64), 1, 0.6, generator(1, "turn"))
    shares = torch.bincount(names, minlength=TURNS) / 3000
    torch.testing.assert_close(shares, torch.tensor([0.4, 0.2, 0.2, 0.2]), atol=0.04, rtol=0)


def test_turning_does_not_write_into_the_batch() -> None:
    pixels, labels = images(), torch.arange(40) % 5
    before = pixels.clone(), labels.clone()
    turned(pixels, labels, 5, 1.0, generator(1, "turn"))
    assert torch.equal(pixels, before[0]) and torch.equal(labels, before[1])


@pytest.mark.parametrize("name", sorted(FEDERATED))
def test_upright_cuts_the_rows_of_turned_classes_and_keeps_all_other_bits(name: str) -> None:
    federation = Federation.model_validate({"algorithm": {"name": name}, "clients": 2})
    tiny = Tiny(federation, ROTATIONS)
    kept: list[State] = []
    cut = tiny.run(keep=kept.append)
    state = kept[-1]
    plain = Tiny(federation)
    size, features = plain.worker.layout.size, plain.worker.layout.features
    assert state.tensors["parameters"].numpy().size == size + 3 * 4 * features
    for part, value in state.tensors.items():
        expected = value[:size] if part in ("parameters", "variate") else value
        assert same_bits({part: cut.tensors[part]}, {part: expected})
    assert ("variate" in cut.tensors) == (name == "scaffold")
    assert cut.layout == plain.start.layout != state.layout
    assert (cut.stage, cut.round, cut.classes) == (state.stage, state.round, state.classes)
    plain.worker.load(cut.tensors)
    tiny.worker.load(state.tensors)
    assert torch.equal(plain.worker.network.prototypes, tiny.worker.network.prototypes[:4])


def test_upright_changes_nothing_where_nothing_was_turned(tiny: Tiny) -> None:
    layout = tiny.worker.layout
    state = tiny.run()
    assert upright(state, layout) is state
    once = Tiny(known=ROTATIONS).run()
    assert upright(once, layout) is once


def test_only_rotations_need_more_rows() -> None:
    assert Known().rows(80) == 80
    assert Known(rotations=True).rows(80) == 320


def test_a_step_is_augmentation_and_the_known_class_loss(tiny: Tiny) -> None:
    _, p = ordered(tiny)
    site = tiny.site("site-0")
    pixels, labels = tiny.images.pixels[::5], tiny.images.labels[::5]
    batch = known_step(site, p, tiny.known)(pixels, labels)
    rng = generator(7, "augment", "known", 0, "site-0")
    expected = augment(pixels, tiny.augment, rng)
    assert torch.equal(batch.images, expected)
    network = site.worker.network
    loss = known_class_loss(batch.z, labels, network.prototypes, 0.1, 0.07)
    assert torch.equal(batch.loss, loss) and batch.loss.detach() > 0


def test_a_step_with_rotations_learns_turned_classes() -> None:
    tiny = Tiny(known=Known(rounds=2, rotations=True, turn_rate=1.0))
    _, p = ordered(tiny)
    batch = known_step(tiny.site("site-0"), p, tiny.known)(tiny.images.pixels[::5], tiny.images.labels[::5])
    tiny.worker.differentiate(batch.loss)
    gradient = tiny.worker.layout.head(tiny.worker.gradient)
    assert gradient.shape == (16, 64) and (gradient != 0).any(dim=1).all()


@pytest.mark.parametrize(("weighting", "weight"), [("uniform", 1.0), ("size", 16.0)])
def test_replies_weigh_the_same_or_by_their_images(weighting: str, weight: float) -> None:
    tiny = Tiny(Federation.model_validate({"clients": 2, "weighting": weighting}))
    ask, _ = ordered(tiny)
    reply = train_locally(tiny.site("site-1"), ask.tensors, ask.options)
    assert reply.weight == weight
    assert reply.metrics["samples"] == 16.0 and reply.metrics["images"] == 16.0 and reply.metrics["steps"] == 2.0
    assert set(reply.tensors) == {"parameters", "buffers", "counters"}


def test_size_weighting_is_the_mean_by_images() -> None:
    shares = {"few": torch.arange(0, 48, 8), "many": torch.arange(1, 48, 2)}
    tiny = Tiny(Federation(clients=2, weighting="size"), Known(rounds=1), shares=shares)
    ask, _ = ordered(tiny)
    own = [train_locally(tiny.site(name), ask.tensors, ask.options) for name in shares]
    expected = (own[0].tensors["parameters"] * 6 + own[1].tensors["parameters"] * 24) / 30
    torch.testing.assert_close(tiny.run().tensors["parameters"], expected)


def test_a_client_without_images_answers_with_weight_zero() -> None:
    tiny = Tiny(shares={**thirds(), "empty": torch.arange(0)})
    ask, _ = ordered(tiny)
    assert train_locally(tiny.site("empty"), ask.tensors, ask.options) == Reply({}, 0.0)


def test_clients_and_rounds_have_draws_of_their_own(tiny: Tiny) -> None:
    ask, p = ordered(tiny)
    share = tiny.site("site-0").share("known")
    names = [Site(name, lambda stage: share, {}, tiny.worker) for name in ("x", "y")]
    by_name = [train_locally(site, ask.tensors, ask.options).tensors["parameters"] for site in names]
    assert not torch.equal(by_name[0], by_name[1])
    later: dict[str, Any] = {**ask.options, "local": p.model_copy(update={"round": 1}).model_dump_json()}
    in_round_1 = train_locally(names[0], ask.tensors, later).tensors["parameters"]
    assert not torch.equal(by_name[0], in_round_1)
    again = train_locally(names[0], ask.tensors, ask.options).tensors["parameters"]
    assert torch.equal(by_name[0], again)


def test_a_diverged_client_is_rejected_and_the_others_go_on() -> None:
    tiny = Tiny(Federation(clients=3), Known(rounds=1))

    def diverging(site: Site, tensors: Tensors, options: Options) -> Reply:
        reply = train_locally(site, tensors, options)
        if site.name == "site-1":
            reply.tensors["parameters"][3] = float("nan")
        return reply

    flow = tiny.flow(tiny.start)
    ask = next(flow)
    assert isinstance(ask, Sum)
    total = InProcess(tiny.site, tuple(tiny.shares), {"known": diverging}).answer(ask)
    assert [(f.participant, f.reason) for f in total.failures] == [("site-1", "rejected")]
    state = flow.send(total)
    assert isinstance(state, State) and torch.isfinite(state.tensors["parameters"]).all()
    assert not torch.equal(state.tensors["parameters"], tiny.start.tensors["parameters"])


def test_an_unknown_task_or_participant_is_a_failure_not_a_crash(tiny: Tiny) -> None:
    ask, _ = ordered(tiny)
    missing = tiny.answer(replace(ask, task="nothing of the kind"))
    assert {f.reason for f in missing.failures} == {"exception"}
    stranger = tiny.answer(replace(ask, participants=("nobody",)))
    assert [(f.participant, f.reason) for f in stranger.failures] == [("nobody", "unavailable")]


def test_contrast_changes_what_is_learned() -> None:
    without, weighted = Tiny(known=Known(rounds=1, eta=0.0)), Tiny(known=Known(rounds=1, eta=1.0))
    assert not same_bits(without.run().tensors, weighted.run().tensors)
