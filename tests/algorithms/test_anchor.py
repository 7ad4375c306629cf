from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asterism.algorithms.anchor import Anchor, ema, frozen_rows, grown, merged, new_names, released
from tests.synthetic import Tiny, same_bits

ROWS = torch.arange(128, dtype=torch.float32).view(2, 64) / 7


def trained(tiny: Tiny, seed: int = 0) -> dict[str, torch.Tensor]:
    """What clients might send back for the grown head: every number moved."""
    state = grown(tiny.start, ROWS, tiny.setup)
    rng = torch.Generator().manual_seed(seed)
    parameters = state.tensors["parameters"]
    noise = torch.randn(parameters.shape, generator=rng)
    buffers = state.tensors["buffers"] + 1
    return {**state.tensors, "parameters": parameters + noise, "buffers": buffers}


def test_ema_is_exact_at_both_ends_and_linear_between() -> None:
    anchor, moved = torch.randn(1000), torch.randn(1000)
    assert torch.equal(ema(anchor, moved, 1.0), anchor)
    assert torch.equal(ema(anchor, moved, 0.0), moved)
    torch.testing.assert_close(ema(anchor, moved, 0.99), 0.99 * anchor + 0.01 * moved)


@given(st.floats(0, 1), st.lists(st.floats(-5, 5), min_size=1, max_size=5))
def test_ema_at_the_server_equals_ema_at_every_client(beta: float, clients: list[float]) -> None:
    anchor = torch.tensor([0.3, -2.0], dtype=torch.float64)
    models = [torch.tensor([value, -value], dtype=torch.float64) for value in clients]
    at_clients = torch.stack([ema(anchor, model, beta) for model in models]).mean(dim=0)
    torch.testing.assert_close(ema(anchor, torch.stack(models).mean(dim=0), beta), at_clients)


def test_grown_state_appends_rows_names_them_and_keeps_the_anchor(tiny: Tiny) -> None:
    state = grown(tiny.start, ROWS, tiny.setup)
    size = len(tiny.start.tensors["parameters"])
    assert torch.equal(state.tensors["parameters"][:size], tiny.start.tensors["parameters"])
    assert torch.equal(state.tensors["parameters"][size:], ROWS.flatten())
    assert torch.equal(state.tensors["anchor"], tiny.start.tensors["parameters"])
    assert state.classes == (*tiny.start.classes, "novel-1", "novel-2")
    tiny.worker.load(state.tensors)
    assert tiny.worker.layout.id == state.layout
    assert frozen_rows(state, tiny.setup) == 4
    assert same_bits(released(state).tensors, {k: v for k, v in state.tensors.items() if "anchor" not in k})


def test_names_go_on_from_earlier_stages() -> None:
    assert new_names(("cat", "novel-1", "novel-2"), 2) == ("novel-3", "novel-4")
    assert new_names(("novel-ish", "a novel-7"), 1) == ("novel-1",)


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_beta_one_leaves_extractor_buffers_and_old_rows_bit_identical(tiny: Tiny, batch_statistics: bool) -> None:
    state = grown(tiny.start, ROWS, tiny.setup)
    after = merged(state, trained(tiny), tiny.setup, beta=1.0, anchor="fixed", batch_statistics=batch_statistics)
    entered = tiny.start.tensors
    assert torch.equal(after["parameters"][: len(entered["parameters"])], entered["parameters"])
    assert torch.equal(after["buffers"], entered["buffers"])
    assert not torch.equal(after["parameters"][len(entered["parameters"]) :], ROWS.flatten())


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.99])
def test_old_rows_keep_their_bits_and_new_rows_are_the_clients_whatever_beta(tiny: Tiny, beta: float) -> None:
    state, sent = grown(tiny.start, ROWS, tiny.setup), trained(tiny)
    after = merged(state, sent, tiny.setup, beta=beta, anchor="fixed", batch_statistics=False)
    start, end = tiny.worker.layout.extractor_size, len(tiny.start.tensors["parameters"])
    assert torch.equal(after["parameters"][start:end], tiny.start.tensors["parameters"][start:end])
    assert torch.equal(after["parameters"][end:], sent["parameters"][end:])


@pytest.mark.parametrize("anchor", ["fixed", "previous"])
def test_a_fixed_anchor_holds_on_and_a_moving_one_drifts(tiny: Tiny, anchor: Anchor) -> None:
    state = grown(tiny.start, ROWS, tiny.setup)
    size, origin = tiny.worker.layout.extractor_size, tiny.start.tensors["parameters"]
    step = torch.ones(size)
    for _ in range(50):  # every round the clients move the extractor by one
        averaged = {**state.tensors, "parameters": state.tensors["parameters"].clone()}
        averaged["parameters"][:size] += step
        tensors = merged(state, averaged, tiny.setup, beta=0.9, anchor=anchor, batch_statistics=False)
        state = type(state)(state.stage, state.round + 1, tensors, state.layout, state.classes)
    drift = (state.tensors["parameters"][:size] - origin[:size]).mean().item()
    # u ← (1 − β)(u + δ) has the fixed point δ(1 − β)/β; a moving anchor adds (1 − β)·δ every round.
    assert drift == pytest.approx(0.1 / 0.9 if anchor == "fixed" else 50 * 0.1, rel=1e-3)
