"""The least time a training step can take: what its operations and its bytes cost at the rates of the hardware.

    python -m bench.floor

Operations are those of the convolutions, forward and twice that backward. Bytes are those of feature maps in bfloat16,
read and written as often as a step must that fuses everything but convolutions (a convolution's own kernel neither
normalises nor adds up statistics), and those of gradient, momentum and weights in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from asterism.backbones import Block, backbone

COPY, MATRIX = 4.3e12, 790e12  # bytes and bfloat16 operations a second that an H200 was seen to reach
# Of one feature map that is normalised. Forward: written by its convolution, read for the statistics, read and written
# when normalised, read by the next convolution. Backward: map and gradient read for two sums, both read and the
# gradient written when normalised, read and written by one convolution, both read by the other.
PASSES = (1 + 1 + 2 + 1) + (2 + 3 + 2 + 2)
SUMMED = 1 + 1  # of the map that a shortcut brings: read forward, and its gradient added backward
STATE = 2 + 5  # float32 vectors: gradient gathered; gradient, momentum and weights read, the last two written


@dataclass(frozen=True)
class Floor:
    """What a step of so many images costs at least."""

    batch: int
    operations: float
    bytes: float

    @property
    def seconds(self) -> tuple[float, float]:
        """If bytes move while matrices multiply, and if they take turns."""
        computing, moving = self.operations / MATRIX, self.bytes / COPY
        return max(computing, moving), computing + moving

    @property
    def images_per_second(self) -> tuple[int, int]:
        """As rates."""
        together, in_turn = self.seconds
        return round(self.batch / together), round(self.batch / in_turn)


def floor(name: str = "resnet18", side: int = 32, batch: int = 256) -> Floor:
    """The floor of one step of a backbone."""
    extractor = backbone(name, 3).eval()
    operations = maps = 0.0

    def convolved(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal operations, maps
        assert isinstance(module, nn.Conv2d)
        kernel = module.weight[0].numel()
        operations += 3 * 2 * kernel * output.numel()
        maps += PASSES * output.numel()

    def added(module: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        nonlocal maps
        maps += SUMMED * output[0].numel()

    for module in extractor.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(convolved)
        if isinstance(module, Block):
            module.register_forward_hook(added)
    with torch.no_grad():
        extractor(torch.zeros(1, 3, side, side))
    weights = sum(parameter.numel() for parameter in extractor.parameters())
    return Floor(batch, batch * operations, 2 * batch * maps + 4 * STATE * weights)


def main(
    name: Annotated[str, typer.Option(help="Backbone.")] = "resnet18",
    side: Annotated[int, typer.Option(help="Pixels on a side.")] = 32,
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "32,256",
) -> None:
    """Prints the floor for each batch size."""
    for batch in map(int, batches.split(",")):
        found = floor(name, side, batch)
        together, in_turn = found.images_per_second
        print(
            f"{name} {side}×{side}, batch {batch}: {found.operations / batch / 1e9:.2f} GFLOP and "
            f"{found.bytes / batch / 1e6:.1f} MB an image; {1e6 * found.operations / MATRIX / batch:.2f} µs of "
            f"operations and {1e6 * found.bytes / COPY / batch:.2f} µs of bytes; at most {together:,} images/s if they "
            f"overlap, {in_turn:,} if they take turns"
        )


if __name__ == "__main__":
    typer.run(main)
