"""Feature extractors for small images: ResNet-18 and 34, a small one for the demo, and any module by import path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from asterism import fused
from asterism.errors import AsterismError
from asterism.fused import forked, normalised, thinned

Twice = tuple[Tensor, Tensor]  # the same feature maps, for a convolution and for the shortcut beside it


class Block(nn.Module):
    """A basic residual block (He et al., 2016): two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.projected = stride != 1 or inputs != outputs
        if self.projected:
            self.conv3 = nn.Conv2d(inputs, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)

    def forward(self, maps: Twice) -> Twice:
        """The block's output for feature maps."""
        x, aside = maps
        inner = normalised(self.bn1, self.conv1(x))
        return forked(self.bn2, self.conv2(inner), self.beside(aside))

    def beside(self, x: Tensor) -> Tensor:
        """The shortcut's feature maps."""
        if not self.projected:
            return x
        # A 1×1 convolution of stride s is one of every s-th pixel, which cuDNN computes several times faster.
        return normalised(self.bn3, self.conv3(thinned(x, self.stride)), rectified=False)


class First(nn.Conv2d):
    """A 3×3 convolution of images; in half precision on a GPU a product for each, for of few channels cuDNN is slow."""

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of images ``x``."""
        if fused.ALLOWED.get() and x.is_cuda and torch.is_autocast_enabled("cuda"):
            return as_products(x.to(torch.bfloat16), self.weight)
        return super().forward(x)


def as_products(x: Tensor, weight: Tensor) -> Tensor:
    """A 3×3 convolution of stride 1 with one pixel of padding, written as products of patches and weights."""
    n, _, height, width = x.shape
    around = pad(x, (1, 1, 1, 1))
    shifted = [around[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    patches = torch.cat(shifted, dim=1).flatten(2)  # (n, 9 · channels, pixels)
    weights = weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous()  # rows of equal length are read at full speed
    maps = torch.bmm(patches.transpose(1, 2), weights.expand(n, -1, -1))
    return maps.view(n, height, width, -1).permute(0, 3, 1, 2)


class ResNet(nn.Module):
    """A ResNet for images of 8 pixels and up: 3×3 stem of stride 1, no max-pool, global average pool, z ≥ 0."""

    def __init__(self, channels: int, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = First(channels, 64, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(64)
        stages, width = [], 64
        for i, count in enumerate(blocks):
            for j in range(count):
                outputs = 64 * 2**i
                stages.append(Block(width, outputs, stride=2 if i > 0 and j == 0 else 1))
                width = outputs
        self.stages = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Representations (n, 512) of images (n, channels, height, width)."""
        maps: Tensor = self.stages(forked(self.bn, self.stem(x)))[0]
        return maps.mean(dim=(2, 3))


class Small(nn.Module):
    """Three convolutions: enough for digits, seconds on a CPU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths, layers = (channels, 32, 64, 64), list[nn.Module]()
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            stride = 1 if i == 0 else 2
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Representations (n, 64) of images (n, channels, height, width)."""
        maps: Tensor = self.layers(x)
        return maps.mean(dim=(2, 3))


BACKBONES: dict[str, Callable[[int], nn.Module]] = {
    "small": Small,
    "resnet18": lambda channels: ResNet(channels, (2, 2, 2, 2)),
    "resnet34": lambda channels: ResNet(channels, (3, 4, 6, 3)),
}
FUSED = ("resnet18", "resnet34")  # those that a GPU trains by the kernels of asterism.fused


def backbone(name: str, channels: int) -> nn.Module:
    """The extractor called ``name``: one of ``BACKBONES`` or ``package.module:Callable`` taking the channel count."""
    if name in BACKBONES:
        return BACKBONES[name](channels)
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(BACKBONES)
        raise AsterismError(f"no backbone called {name!r}", where="model.name", fix=f"{known}, or package.module:Class")
    try:
        made = getattr(importlib.import_module(module), attribute)(channels)
    except Exception as error:  # a user's module may raise anything
        reason = str(error).partition("\n")[0]
        raise AsterismError(f"cannot build {name!r}: {type(error).__name__}: {reason}", where="model.name") from error
    if not isinstance(made, nn.Module):
        raise AsterismError(f"{name!r} made a {type(made).__name__}, not an nn.Module", where="model.name")
    return made


def width(extractor: nn.Module, shape: tuple[int, int, int]) -> int:
    """The number of features ``extractor`` gives for one image of ``shape``, found by asking it."""
    training = extractor.training
    try:
        with torch.no_grad():
            z = extractor.eval()(torch.zeros(1, *shape))
    except Exception as error:  # a user's module may raise anything
        reason = str(error).partition("\n")[0]
        raise AsterismError(f"the backbone takes no images of shape {shape}: {reason}", where="model.name") from error
    extractor.train(training)
    if not isinstance(z, Tensor) or z.ndim != 2:
        raise AsterismError("the backbone must map (n, c, h, w) images to (n, d) features", where="model.name")
    return int(z.shape[1])
