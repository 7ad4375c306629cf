"""FedAvg (McMahan et al., 2017): the server takes the mean of the clients' models, buffers included (Eq. 2)."""

from __future__ import annotations

from typing import Literal

from asterism.config import Section
from asterism.flow import State, Tensors, Total
from asterism.site import Site
from asterism.training import Term


class FedAvg(Section):
    """FedAvg has no settings of its own."""

    name: Literal["fedavg"] = "fedavg"


def start(site: Site, tensors: Tensors, p: FedAvg, kept: float = 1.0) -> Term:
    """Local training as it is."""
    return Term()


def update(state: State, total: Total, participants: int) -> Tensors:
    """The mean of the clients' vectors; the model as it was where no client had anything to add."""
    return {**state.tensors, **total.mean()}
