"""Remembering without old data: distillation from m^L, and replay of earlier classes from their prototypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from asterism.algorithms.local import Local
from asterism.config import Section
from asterism.flow import Tensors
from asterism.losses import distillation_loss
from asterism.model import Network
from asterism.site import Site


class Remember(Section):
    """How strongly earlier classes are held where EMA is replaced by distillation."""

    distillation: Annotated[float, Field(ge=0)] = 1.0  # weight of the known logits' distillation
    temperature: Annotated[float, Field(gt=0)] = 2.0
    replay: Annotated[float, Field(ge=0)] = 1.0  # weight of cross entropy on features made from prototypes
    deviation: Annotated[float, Field(ge=0)] = 0.1  # of those features around their prototype, by its norm


def reference(site: Site, name: str, tensors: Tensors) -> Network:
    """A second network in eval mode: the model whose vectors were sent as ``name`` and ``name_buffers``."""
    twin = site.worker.twin(name)
    twin.load({**tensors, "parameters": tensors[name], "buffers": tensors[f"{name}_buffers"]})
    return twin.network.eval()


def remembering(
    site: Site, local: Local, p: Remember, tensors: Tensors, frozen: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that keeps a client's known logits near those of the anchor and novel rows off known prototypes."""
    teacher = reference(site, "anchor", tensors)
    network, device = site.worker.network, site.worker.device
    prototypes = teacher.prototypes.detach()[:frozen]
    classes = torch.arange(frozen, device=device)
    rng = site.worker.generator(local.seed, "replay", local.stage, local.round, site.name)

    def loss(images: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            target = teacher(images)[:, :frozen]
        kept = distillation_loss(z @ network.prototypes[:frozen].T, target, p.temperature)
        spread = p.deviation * prototypes.norm(dim=1, keepdim=True) / prototypes.shape[1] ** 0.5
        noise = torch.randn(prototypes.shape, generator=rng, device=device)
        replayed = cross_entropy((prototypes + spread * noise) @ network.prototypes.T, classes)
        return p.distillation * kept + p.replay * replayed

    return loss
