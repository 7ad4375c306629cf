"""Sizes of the built-in feature extractors, and modules of a user's own by import path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from asterism.backbones import BACKBONES, backbone, width
from asterism.errors import AsterismError

BROKEN = '''
"""Modules that are not what a backbone should be."""

import torch
from torch import nn


class Fine(nn.Module):
    features = 99  # how some libraries call a part of a network; not the width

    def __init__(self, channels):
        super().__init__()
        self.layer = nn.LazyLinear(5)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Maps(nn.Module):
    def __init__(self, channels):
        super().__init__()

    def forward(self, x):
        return x


class Pair(Maps):
    def forward(self, x):
        return x, x


class Large(Maps):
    def forward(self, x):
        return nn.functional.conv2d(x, torch.ones(1, 1, 20, 20)).flatten(1)


class NoChannels(nn.Module):
    pass


def number(channels):
    return channels


def angry(channels):
    raise RuntimeError("first line\\nsecond line")
'''


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_modules.py").write_text(BROKEN)
    (tmp_path / "a_users_typo.py").write_text("def broken(:\n")
    monkeypatch.syspath_prepend(tmp_path)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def literal_resnet_parameters(channels: int, blocks: tuple[int, ...]) -> int:
    """Weights of a basic-block ResNet with a 3×3 stem, convolution by convolution; two numbers a BatchNorm channel."""
    total, inputs = channels * 64 * 9 + 2 * 64, 64
    for i, count in enumerate(blocks):
        outputs = 64 * 2**i
        for _ in range(count):
            total += inputs * outputs * 9 + 2 * outputs + outputs * outputs * 9 + 2 * outputs
            if inputs != outputs:
                total += inputs * outputs + 2 * outputs
            inputs = outputs
    return total


def test_resnets_have_the_well_known_number_of_parameters() -> None:
    assert parameters(backbone("resnet18", 3)) == literal_resnet_parameters(3, (2, 2, 2, 2)) == 11_168_832
    assert parameters(backbone("resnet34", 3)) == literal_resnet_parameters(3, (3, 4, 6, 3)) == 21_276_992


@pytest.mark.parametrize("side", [8, 28, 32, 56, 64])
@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_any_image_from_8_pixels_up_gives_one_row_of_features(name: str, side: int) -> None:
    channels = 1 if side in (8, 28) else 3
    extractor = backbone(name, channels).eval()
    with torch.no_grad():
        z = extractor(torch.rand(2, channels, side, side))
    assert z.shape == (2, width(extractor, (channels, side, side))) == (2, 64 if name == "small" else 512)
    assert (z >= 0).all() and (z > 0).any()


def test_the_stem_keeps_the_resolution_and_three_stages_halve_it() -> None:
    sides: list[int] = []
    extractor = backbone("resnet18", 3).eval()

    def noted(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, Tensor]) -> None:
        sides.append((output if isinstance(output, Tensor) else output[0]).shape[-1])

    for module in (extractor.get_submodule("stem"), *(extractor.get_submodule(f"stages.{i}") for i in (1, 3, 5, 7))):
        module.register_forward_hook(noted)
    with torch.no_grad():
        extractor(torch.rand(1, 3, 32, 32))
    assert sides == [32, 32, 16, 8, 4]


def test_a_block_adds_its_shortcut() -> None:
    block = backbone("resnet18", 3).get_submodule("stages.0").eval()
    images = torch.rand(2, 64, 5, 5)
    with torch.no_grad():
        for parameter in block.get_submodule("conv2").parameters():
            parameter.zero_()
        assert all(torch.equal(maps, images) for maps in block((images, images)))


def test_width_is_asked_for_and_leaves_the_training_mode_alone(own_modules: None) -> None:
    extractor = backbone("a_users_modules:Fine", 1)
    assert extractor.training
    assert width(extractor, (1, 4, 4)) == 5
    assert extractor.training


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AsterismError, match="no backbone called 'resnet17'") as caught:
        backbone("resnet17", 3)
    assert all(name in caught.value.fix for name in BACKBONES)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a_users_missing:Net", "No module named"),
        ("a_users_modules:Missing", "has no attribute 'Missing'"),
        ("a_users_modules:", "has no attribute ''"),
        (":Net", "Empty module name"),
        (".relative:Net", "package"),
        ("a_users_modules:NoChannels", "argument"),
        ("a_users_modules:angry", "RuntimeError: first line"),
        ("a_users_typo:broken", "SyntaxError"),
        ("a_users_modules:number", "made a int, not an nn.Module"),
    ],
)
def test_a_path_that_gives_no_module_is_one_line(own_modules: None, name: str, reason: str) -> None:
    with pytest.raises(AsterismError) as caught:
        backbone(name, 3)
    assert reason in caught.value.what and name in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.where == "model.name"


@pytest.mark.parametrize("name", ["Maps", "Pair", "Large"])
def test_a_module_that_gives_no_row_of_features_is_one_line(own_modules: None, name: str) -> None:
    with pytest.raises(AsterismError, match="the backbone") as caught:
        width(backbone(f"a_users_modules:{name}", 1), (1, 8, 8))
    assert "\n" not in caught.value.what
    assert caught.value.where == "model.name"
