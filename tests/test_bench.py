from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.floor import COPY, MATRIX, PASSES, Floor, floor
from bench.peers.__main__ import HERE, PEERS, Peer, Refused, compared, environment, table
from bench.peers.work import Work
from bench.plot import picture
from bench.profile import kind
from bench.record import described

TRIED = Work("small", clients=2, images=8, batch=4, threads=1)
RESNET = 555_417_600  # multiplications of the convolutions of ResNet-18 for one 32×32 image, counted by hand


def test_operations_are_those_of_the_convolutions_forward_and_twice_backward() -> None:
    assert floor("resnet18", 32, 1).operations == 3 * 2 * RESNET
    assert floor("resnet18", 32, 256).operations == 256 * 3 * 2 * RESNET


def test_bytes_are_passes_over_feature_maps_and_over_weights() -> None:
    one, two = floor("small", 8, 1), floor("small", 8, 2)
    maps = 32 * 64 + 64 * 16 + 64 * 4  # of three convolutions, the last two of stride 2
    assert two.bytes - one.bytes == 2 * PASSES * maps


def test_what_takes_turns_takes_the_sum() -> None:
    together, in_turn = Floor(10, operations=MATRIX, bytes=3 * COPY).seconds
    assert (together, in_turn) == (3.0, 4.0)


def test_every_peer_with_packages_has_its_list() -> None:
    assert {peer.packages for peer in PEERS.values() if peer.packages} == {path.stem for path in HERE.glob("*.txt")}
    pins = [line for path in HERE.glob("*.txt") for line in path.read_text().splitlines()]
    assert pins and all("==" in pin and not pin.startswith(("torch==", "numpy==")) for pin in pins)


def test_packages_that_are_nowhere_are_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"No matching distribution|Could not find"):
        environment("pfl", tmp_path / "environments", wheels=tmp_path)


def test_a_peer_that_cannot_run_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="ours, to which all are compared: ended with 1"):
        compared("try", TRIED, {"ours": Peer("ours")}, 1, (Path(), None))
    row = {"work": "try", "peer": "ours", "not_run": "ended with 1"}
    assert "not run: ended with 1" in table([row])


def test_a_measurement_says_where_it_comes_from() -> None:
    assert {"command", "commit", "date", "machine", "versions", "load_before", "runs"} == set(described())


@pytest.mark.slow
def test_ours_and_the_plain_loop_do_the_same_work() -> None:
    rows = compared("try", TRIED, {"ours": Peer("ours"), "loop": Peer("eager")}, 1, (Path(), None))
    assert [row["peer"] for row in rows] == ["ours", "loop"] and rows[0]["times_ours"] == 1.0
    assert all(row["images_per_second"] > 0 for row in rows)
    assert len(picture([{**row, "peer": "asterism"} for row in rows[:1]], "here").axes) == 1


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16", "dgrad"),
        ("void cask_plugin::init_device_workspace_kernel<wgrad_indexed>", "wgrad"),
        ("nvjet_sm90_tst_64x32_64x16", "products"),
        ("add_up_backward", "own"),
        ("Memset (Device)", "other"),
    ],
)
def test_a_kernel_is_filed_by_its_name(kernel: str, wanted: str) -> None:
    assert kind(kernel) == wanted


def test_the_least_is_no_bound_where_models_are_trained() -> None:
    rows = compared(
        "tiny",
        Work("small", images=4, batch=2, threads=1),
        {"eager loop": PEERS["eager loop"], "least": PEERS["least"]},
        1,
        (Path(), None),
    )
    assert [row.get("not_run", "") for row in rows if row["peer"] == "least"] == [
        "only for work in which nothing is trained"
    ]
