"""FedProx (Li et al., 2020): a pull of μ/2·‖w − w_global‖² towards the model the round began with.

Departure: only what is trained is pulled; frozen rows and BatchNorm statistics are not (docs/departures.md).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from asterism.config import Section
from asterism.flow import Tensors
from asterism.site import Site
from asterism.training import Term


class FedProx(Section):
    """Settings of FedProx."""

    name: Literal["fedprox"] = "fedprox"
    mu: Annotated[float, Field(ge=0)] = 0.01  # μ


def start(site: Site, tensors: Tensors, p: FedProx, kept: float = 1.0) -> Term:
    """Adds the gradient of the proximal term, μ·(w − w_global)."""
    origin = site.worker.hold("origin", tensors["parameters"])

    def correct(gradient: Tensor, parameters: Tensor) -> None:
        gradient.add_(parameters.detach() - origin, alpha=p.mu)

    return Term(correct=correct)
