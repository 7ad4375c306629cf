"""The attack recovers an image from its own representation, and less of any the more images stand behind one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from asterism.cli import app
from asterism.experiment import load
from asterism.privacy.attack import behind, reconstruct, similarity, total_variation
from asterism.runs.audit import audit
from asterism.runs.execute import execute, new_folder
from asterism.seeds import generator
from asterism.suite.page import read_audits, reproduction
from tests.runs.conftest import TINY
from tests.synthetic import SHAPE, pictures


def real() -> Tensor:
    return pictures().pixels.float() / 255


def small_net() -> nn.Module:
    """An untrained convolution with more numbers out than in, so that one image can be read back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(), nn.Flatten())
    return net.requires_grad_(False)


def recovered_error(net: nn.Module, images: Tensor, size: int) -> float:
    """Mean squared pixel error of the attack on prototypes of ``size`` images, to the nearest image behind each."""
    z = net(images)
    groups = [behind(z, first, size) for first in (0, 12, 24, 36)]
    targets = torch.stack([z[rows].mean(dim=0) for rows in groups])
    found = reconstruct(net, targets, SHAPE, rng=generator(1, "attack"), steps=800)
    return sum(float(similarity(found.images[i : i + 1], images[rows]).error) for i, rows in enumerate(groups)) / len(
        groups
    )


def test_prototypes_of_one_image_give_it_away_and_those_of_many_do_not() -> None:
    net, images = small_net(), real()
    one, four, twelve = (recovered_error(net, images, size) for size in (1, 4, 12))
    assert one < 1e-4
    assert one < four / 10
    assert four < twelve


def test_the_attack_ends_when_nothing_falls_any_more() -> None:
    images = real()[:2]
    found = reconstruct(lambda x: x.flatten(1), images.flatten(1), SHAPE, rng=generator(1, "attack"), patience=20)
    assert found.steps < 2000
    assert float(found.errors.max()) < 1e-4
    assert float(found.images.min()) >= 0 and float(found.images.max()) <= 1


def test_a_prior_of_smoothness_makes_smoother_images() -> None:
    images = real()[:2]
    rough, smooth = (
        reconstruct(lambda x: x.mean(dim=(1, 2, 3))[:, None], images.mean(dim=(1, 2, 3))[:, None], SHAPE,
                    rng=generator(1, "attack"), steps=200, smoothness=weight)
        for weight in (0.0, 0.1)
    )  # fmt: skip
    assert bool((total_variation(smooth.images) < total_variation(rough.images) / 10).all())
    assert float(smooth.errors.max()) < 1e-3


def test_similarity_names_the_nearest_image() -> None:
    images = real()
    found = similarity(images[[5, 30]], images)
    assert found.nearest.tolist() == [5, 30]
    assert found.error.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert found.cosine.tolist() == pytest.approx([1, 1], abs=1e-4)
    assert bool((found.psnr > 60).all())


def test_behind_is_an_image_and_its_nearest_neighbours() -> None:
    z = torch.tensor([[0.0], [10.0], [1.0], [11.0], [0.5]])
    assert behind(z, 0, 3).tolist() == [0, 4, 2]
    assert behind(z, 3, 2).tolist() == [3, 1]


def test_audit_attacks_what_the_sites_of_a_run_sent(tmp_path: Path) -> None:
    run = new_folder(load("demo", [*TINY, "known.rounds=2"]), tmp_path / "run")
    execute(run)
    states = {file: file.read_bytes() for file in run.glob("s*/**/*.safetensors")}
    told = audit(run, each=2, steps=60, sizes=(1, 4))
    assert told == json.loads((run / "audit.json").read_text())
    kinds = {(group["kind"], group["images"]): group["prototypes"] for group in told["groups"]}
    assert kinds["made", 1] == kinds["made", 4] == 2
    assert sum(count for (kind, _), count in kinds.items() if kind == "sent") == 2
    assert all(group["match"] >= 0 and group["psnr"] > 0 for group in told["groups"])
    assert {file: file.read_bytes() for file in run.glob("s*/**/*.safetensors")} == states


def test_the_command_keeps_pictures_in_the_run_and_numbers_outside(tmp_path: Path) -> None:
    run = new_folder(load("demo", [*TINY, "known.rounds=1"]), tmp_path / "run")
    execute(run)
    out = tmp_path / "results/reconstruction/demo.json"
    done = CliRunner().invoke(app, ["audit", str(run), "--each", "1", "--steps", "5", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "blind" in done.stdout
    assert (run / "audit.svg").read_text().startswith("<svg xmlns=")
    assert "pictures" in (run / "audit.json").read_text() and "pictures" not in out.read_text()
    page = reproduction([], read_audits(tmp_path / "results"))
    assert "### demo, seed 2023, novel-1" in page and "| made | 1 | 1 |" in page
