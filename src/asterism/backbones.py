"""Feature extractors for small images: ResNet-18 and 34, a small one for the demo, and any module by import path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, pad, relu

from asterism.errors import AsterismError


class Block(nn.Module):
    """A basic residual block (He et al., 2016): two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for feature maps ``x``."""
        inner = rectified(self.bn1(self.conv1(x)))
        # A 1×1 convolution of stride s is one of every s-th pixel, which cuDNN computes several times faster.
        thinned = avg_pool2d(x, 1, self.stride) if self.stride > 1 else x
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(thinned))


def rectified(x: Tensor) -> Tensor:
    """``relu``; when compiled, in a form whose gradient needs ``x`` alone, one tensor less to read than relu's."""
    return torch.where(x > 0, x, 0) if torch.compiler.is_compiling() else relu(x)


class First(nn.Conv2d):
    """A convolution of images, whose few channels a GPU is given filled up with zeros to a multiple of eight.

    Tensor cores read eight channels at a time; of three, cuDNN falls back to kernels several times slower.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of images ``x``."""
        if not x.is_cuda:
            return super().forward(x)
        missing = (0, 0, 0, 0, 0, -x.shape[1] % 8)
        return conv2d(pad(x, missing), pad(self.weight, missing), self.bias, self.stride, self.padding)


class ResNet(nn.Module):
    """A ResNet for images of 8 pixels and up: 3×3 stem of stride 1, no max-pool, global average pool, z ≥ 0."""

    def __init__(self, channels: int, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(First(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64))
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
        maps: Tensor = self.stages(rectified(self.stem(x)))
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
