"""The work that every peer does, and how a peer is talked to. Plain torch: runs where the peer's packages are.

A peer is a process of its own. It is told its work in one JSON line, answers when it is ready, and then plays one
round for every further line, so that rounds of several peers can be interleaved.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from asterism.backbones import backbone

MARK = "@bench "  # begins every line that is meant for us: frameworks print too
CLASSES = 100
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4


@dataclass(frozen=True)
class Work:
    """What one round is: every client trains on its images, and their models are averaged."""

    model: str = "resnet18"
    clients: int = 5
    images: int = 256  # of each client
    batch: int = 256
    epochs: int = 1
    trains: bool = True  # without, models only travel
    side: int = 32
    half: bool = False  # bfloat16, where the peer can
    channels_last: bool = False  # of the peers; ours lays out its own weights
    device: str = "cpu"
    threads: int = 2

    @property
    def trained(self) -> int:
        """Images that a round trains on."""
        return self.clients * self.images * self.epochs if self.trains else 0

    def autocast(self) -> AbstractContextManager[Any]:
        """How a forward pass computes."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.half)


class Net(nn.Module):
    """The network that ours trains too: the same extractor, and a linear head without bias."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.extractor = backbone(work.model, 3)
            width = 512 if work.model.startswith("resnet") else 64
            self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return cast(Tensor, self.head(self.extractor(images)))


def network(work: Work) -> Net:
    """The network before the first round, where it computes and how."""
    net = Net(work).to(work.device)
    return net.to(memory_format=torch.channels_last) if work.channels_last else net  # type: ignore[call-overload]


def pixels(work: Work, client: int) -> tuple[Tensor, Tensor]:
    """A client's images as uint8 noise, and their labels: what is learned does not matter here."""
    rng = torch.Generator().manual_seed(client)
    images = torch.randint(0, 256, (work.images, 3, work.side, work.side), generator=rng, dtype=torch.uint8)
    return images, torch.randint(0, CLASSES, (work.images,), generator=rng)


def tensors(work: Work, client: int) -> tuple[Tensor, Tensor]:
    """The same as a network takes them, made once: no peer has to decode or to normalise."""
    images, labels = pixels(work, client)
    layout = torch.channels_last if work.channels_last else torch.contiguous_format
    values = ((images.float() / 255 - 0.5) / 0.25).to(work.device, memory_format=layout)
    return values, labels.to(work.device)


def optimiser(net: nn.Module) -> torch.optim.SGD:
    """The optimiser of a client's round."""
    fused = next(net.parameters()).is_cuda
    return torch.optim.SGD(net.parameters(), LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=fused)


def train(net: Net, data: tuple[Tensor, Tensor], work: Work) -> None:
    """A client's round, written as one would: batches in a new order each epoch."""
    if not work.trains:
        return
    net.train()
    images, labels = data
    descent = optimiser(net)
    for _ in range(work.epochs):
        for chosen in torch.split(torch.randperm(len(labels), device=labels.device), work.batch):
            with work.autocast():
                loss = cross_entropy(net(images[chosen]), labels[chosen])
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()


def told() -> Work:
    """The work of this process, from its first line; the process is set up for it."""
    work = Work(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(work.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # PyTorch's tuning guide asks for it where shapes are fixed
    return work


def tell(answer: Mapping[str, object]) -> None:
    """Hands one answer to whoever started this process."""
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


def serve(work: Work, versions: Mapping[str, str], play: Callable[[], None], agreed: Callable[[], Net]) -> None:
    """Plays a round for every line that comes, and tells how long it took and how far the model has moved.

    ``agreed`` gives the model after a round; what that costs is not counted.
    """
    start = [parameter.detach().cpu() for parameter in Net(work).parameters()]
    tell({"ready": {**versions, "torch": torch.__version__, "threads": str(torch.get_num_threads())}})
    for _ in sys.stdin:
        _synchronize(work)
        began, worked = time.perf_counter(), time.process_time()
        play()
        _synchronize(work)
        seconds, processor = time.perf_counter() - began, time.process_time() - worked
        now = [parameter.detach().cpu() for parameter in agreed().parameters()]
        moved = sum(float((a - b).square().sum()) for a, b in zip(now, start, strict=True)) ** 0.5
        tell({"seconds": seconds, "processor": processor, "moved": moved, "load": os.getloadavg()[0]})


def _synchronize(work: Work) -> None:
    if work.device == "cuda":
        torch.cuda.synchronize()
