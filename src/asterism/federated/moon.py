"""MOON (Li et al., 2021): representations stay near the global model's and leave the client's previous ones.

Adds μ·CE([cos(z, z_global), cos(z, z_previous)]/T, 0), both reference networks in eval mode and without gradient.
Departures (docs/departures.md): z itself instead of a projector's output, since the head must stay one linear layer;
a client that never trained before has no previous model and skips the term.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from asterism.config import Section
from asterism.flow import Tensors
from asterism.losses import model_contrastive_loss
from asterism.model import fitted
from asterism.site import Site
from asterism.training import Batch, Term
from asterism.worker import Worker

OWN = "moon"


class Moon(Section):
    """Settings of MOON."""

    name: Literal["moon"] = "moon"
    mu: Annotated[float, Field(ge=0)] = 1.0  # μ
    temperature: Annotated[float, Field(gt=0)] = 0.5  # T


def start(site: Site, tensors: Tensors, p: Moon, kept: float = 1.0) -> Term:
    """Adds the contrast between the global and the previous model, and keeps the trained model as the next previous."""

    def finish(worker: Worker, steps: int, lr: float) -> Mapping[str, Tensor]:
        site.store[OWN] = worker.take()
        return {}

    if OWN not in site.store:
        return Term(finish=finish)
    of_global = _reference(site.worker, "global", tensors)
    of_previous = _reference(site.worker, "previous", site.store[OWN])

    def loss(batch: Batch) -> Tensor:
        with torch.no_grad():
            near, far = of_global.network.represent(batch.images), of_previous.network.represent(batch.images)
        return p.mu * model_contrastive_loss(batch.z, near, far, p.temperature)

    return Term(loss=loss, finish=finish, variant="with previous")


def _reference(worker: Worker, purpose: str, tensors: Tensors) -> Worker:
    """A second network in eval mode; a head from before or after a change of stage does not matter to z."""
    reference = worker.twin(purpose)
    parameters = fitted(tensors["parameters"], reference.layout.size)
    reference.load({**tensors, "parameters": parameters})
    reference.network.eval()
    return reference
