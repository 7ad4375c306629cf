"""How near to the memory's own speed our kernels come, map by map, and which tiles bring them there.

    python -m bench.kernels                       the tiles in use
    python -m bench.kernels --search              every combination of a few

Each row is one call of the autograd function over feature maps of ResNet-18 at B = 256: forward (statistics, settling,
normalising) or backward (the same), with the rate at which it moves the bytes that it must.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor, nn

from asterism import fused
from asterism.files import write_json
from bench.record import described, results_file

MAPS = ((64, 32), (128, 16), (256, 8), (512, 4))  # channels, pixels on a side
TILES = {"ROWS": (16, 32, 64), "PIECES": (264, 528, 1056), "TOGETHER": (64, 128, 256), "WARPS": (4, 8)}
FORWARD, BACKWARD = 3, 5  # times that a map, or its gradient, is read or written
SHORTCUT = (1, 3)  # more of it with a shortcut: read; second gradient and output read, what passed written


def passes(channels: int, side: int, batch: int, added: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward call over maps of noise, and one with its backward call."""
    torch.manual_seed(0)
    shape = (batch, channels, side, side)

    def maps() -> Tensor:
        drawn = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return drawn.contiguous(memory_format=torch.channels_last)

    bn = nn.BatchNorm2d(channels).cuda()
    x, beside = maps().requires_grad_(), maps().requires_grad_() if added else None
    gradients = [maps(), maps()] if added else [maps()]
    inputs = [value for value in (x, beside) if value is not None]

    def forward() -> tuple[Tensor, ...]:
        return fused.forked(bn, x, beside)[: len(gradients)]

    # A backward pass alone could not be captured: it runs on the stream of its forward pass.
    return forward, lambda: torch.autograd.grad(forward(), inputs, gradients)


def microseconds(work: Callable[[], object]) -> float:
    """The median time of a call on the GPU, launches replayed from a graph."""
    from triton.testing import do_bench_cudagraph

    return 1e3 * float(do_bench_cudagraph(work, rep=40, return_mode="median"))


def rows(batch: int) -> Iterator[dict[str, Any]]:
    """The table for the tiles in use."""
    for (channels, side), added in itertools.product(MAPS, (False, True)):
        size = 2 * batch * channels * side * side
        forward, both = map(microseconds, passes(channels, side, batch, added))
        for name, took, count, more in zip(
            ("forward", "backward"), (forward, both - forward), (FORWARD, BACKWARD), SHORTCUT, strict=True
        ):
            moved = size * (count + more * added)
            yield {
                "channels": channels, "side": side, "shortcut": added, "pass": name, "µs": round(took, 1),
                "terabytes_per_second": round(moved / took / 1e6, 2),
            }  # fmt: skip


def tiles(search: bool) -> Iterator[dict[str, int]]:
    """Combinations of tiles to try; none changes nothing."""
    if not search:
        yield {}
        return
    for values in itertools.product(*TILES.values()):
        yield dict(zip(TILES, values, strict=True))


def main(
    search: Annotated[bool, typer.Option("--search", help="Try other tiles.")] = False,
    batch: Annotated[int, typer.Option(help="Images.")] = 256,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Measures every map, for each combination of tiles."""
    from asterism import kernels

    found = described()
    for chosen in tiles(search):
        with patch.dict(vars(kernels), chosen), fused.allowed(True):
            measured = list(rows(batch))
        total = round(sum(row["µs"] for row in measured), 1)
        found["runs"].append({"tiles": chosen, "µs_of_all": total, "maps": measured})
        print(json.dumps(chosen), total, flush=True)
        if not search:
            for row in measured:
                print(json.dumps(row, ensure_ascii=False))
        write_json(out or results_file("kernels", "cuda"), found)


if __name__ == "__main__":
    typer.run(main)
