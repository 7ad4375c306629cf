"""The data memory M^k: which of a participant's images were called novel. It holds rows of images, never images.

Every image gets a key when it arrives, by the rule of eviction, and the memory holds the images of the largest keys.
What it holds therefore does not depend on how the stream was cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from asterism.flow import Tensors
from asterism.site import Share, Site

MEMORY, SCREENED = "memory/", "screened/"  # entries of a participant's store, by stage
Eviction = Literal["oldest", "least-novel", "random"]


@dataclass(frozen=True, eq=False)
class Memory:
    """Images in the order of their arrival, on the CPU; ``seen`` and ``flagged`` also count what is no longer held."""

    rows: Tensor  # (n,) int64, of the participant's image set
    scores: Tensor  # (n,) float32, larger = more known
    order: Tensor  # (n,) float64, the keys
    seen: int = 0  # images looked at
    flagged: int = 0  # images called novel

    def __len__(self) -> int:
        return len(self.rows)


def empty() -> Memory:
    """A memory before the first image."""
    none = torch.empty(0)
    return Memory(none.long(), none, none.double())


def add(
    memory: Memory,
    rows: Tensor,
    scores: Tensor,
    novel: Tensor,
    *,
    capacity: int,
    eviction: Eviction,
    rng: torch.Generator,
) -> Memory:
    """The memory after a batch of looked-at images, of which those marked ``novel`` are taken in.

    Beyond ``capacity`` images leave: the oldest, those that look least novel, or, by ``rng``, any (what stays is a
    uniform sample of all that were ever taken in). Among equally novel ones, the earliest stay.
    """
    scores, mask = scores.detach().cpu().float(), novel.cpu()
    arrived = scores[mask]
    order = torch.cat([memory.order, KEYS[eviction](memory, arrived, rng)])
    staying = order.argsort(descending=True, stable=True)[:capacity].sort().values
    return Memory(
        rows=torch.cat([memory.rows, rows.cpu()[mask]])[staying],
        scores=torch.cat([memory.scores, arrived])[staying],
        order=order[staying],
        seen=memory.seen + len(mask),
        flagged=memory.flagged + len(arrived),
    )


def novelty_rate(memory: Memory) -> float:
    """The share of looked-at images that were called novel; 0 before the first."""
    return memory.flagged / memory.seen if memory.seen else 0.0


def tensors(memory: Memory) -> dict[str, Tensor]:
    """The memory as an entry of a participant's store."""
    counts = torch.tensor([memory.seen, memory.flagged])
    return {"rows": memory.rows, "scores": memory.scores, "order": memory.order, "seen": counts}


def from_tensors(entry: Tensors) -> Memory:
    """The memory behind an entry of a store."""
    seen, flagged = entry["seen"].tolist()
    return Memory(entry["rows"], entry["scores"], entry["order"], seen, flagged)


def keep(site: Site, stage: str, memory: Memory, rows: Tensor, labels: Tensor, confidence: Tensor) -> None:
    """The participant's store holds the memory, and the ``rows`` taken for known with what they were taken for."""
    site.store[MEMORY + stage] = tensors(memory)
    known = {"rows": rows, "labels": labels, "confidence": confidence}
    site.store[SCREENED + stage] = {name: value.cpu() for name, value in known.items()}


def novel_share(site: Site, stage: str) -> Share:
    """The images a participant learns novel classes from: its data memory, or its whole share if it never screened."""
    share = site.share(stage)
    if MEMORY + stage not in site.store:
        return share
    rows = from_tensors(site.store[MEMORY + stage]).rows
    return replace(share, indices=rows.to(share.indices.device))


def pseudo_labelled(site: Site, stage: str, confidence: float = 0.0) -> Share:
    """The images that screening took for known, and surely enough; targets are what it took them for, −1 elsewhere."""
    share = site.share(stage)
    entry = site.store.get(SCREENED + stage)
    if entry is None:
        return replace(share, indices=share.indices[:0])
    device = share.indices.device
    sure = entry["confidence"] >= confidence
    rows, labels = entry["rows"][sure].to(device), entry["labels"][sure].to(device)
    targets = torch.full_like(share.targets, -1)
    targets[rows] = labels.to(targets.dtype)
    return replace(share, targets=targets, indices=rows)


def earlier_shares(site: Site, stage: str) -> list[Share]:
    """What the participant's memory holds of other stages than this one: their classes are known by now."""
    stages = sorted(key.removeprefix(MEMORY) for key in site.store if key.startswith(MEMORY))
    return [novel_share(site, other) for other in stages if other != stage]


def _arrival(memory: Memory, scores: Tensor, rng: torch.Generator) -> Tensor:
    return memory.flagged + torch.arange(len(scores), dtype=torch.float64)


def _novelty(memory: Memory, scores: Tensor, rng: torch.Generator) -> Tensor:
    return -scores.double()


def _chance(memory: Memory, scores: Tensor, rng: torch.Generator) -> Tensor:
    return torch.rand(len(scores), dtype=torch.float64, generator=rng)


KEYS: Mapping[Eviction, Callable[[Memory, Tensor, torch.Generator], Tensor]] = {
    "oldest": _arrival,
    "least-novel": _novelty,
    "random": _chance,
}
