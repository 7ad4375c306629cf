"""The FL algorithms by name. Each is a local term and a server update, usable in every stage of learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from asterism.config import Section
from asterism.federated import fedavg, fedprox, moon, scaffold
from asterism.federated.fedavg import FedAvg
from asterism.federated.fedprox import FedProx
from asterism.federated.moon import Moon
from asterism.federated.scaffold import Scaffold
from asterism.flow import State, Tensors, Total
from asterism.site import Site
from asterism.training import Term

__all__ = ["FEDERATED", "Algorithm", "FedAvg", "FedProx", "Federated", "Federation", "Moon", "Scaffold"]

Algorithm = Annotated[FedAvg | FedProx | Scaffold | Moon, Field(discriminator="name")]


class Federation(Section):
    """Who trains in a round, how replies are weighted, and what happens when some are missing."""

    algorithm: Algorithm = FedAvg()
    clients: Annotated[int, Field(ge=1)] = 5  # |𝒦|, chosen per round
    weighting: Literal["uniform", "size"] = "uniform"  # Eq. 2 is uniform
    quorum: Annotated[int, Field(ge=1)] = 1  # a round with fewer replies counts as missed
    deadline: Annotated[float, Field(gt=0)] | None = None  # seconds a round may take
    patience: Annotated[int, Field(ge=1)] = 3  # missed rounds in a row before the run stops


@dataclass(frozen=True)
class Federated:
    """One FL algorithm: its settings, what it adds to local training, and how the server takes the total in.

    ``start`` is also told the share of the extractor's local movement that outlives the round: all of it, unless a
    stage draws the extractor back.
    """

    params: type[Section]
    start: Callable[[Site, Tensors, Any, float], Term]
    update: Callable[[State, Total, int], Tensors]


FEDERATED: Mapping[str, Federated] = {
    "fedavg": Federated(FedAvg, fedavg.start, fedavg.update),
    "fedprox": Federated(FedProx, fedprox.start, fedavg.update),
    "scaffold": Federated(Scaffold, scaffold.start, scaffold.update),
    "moon": Federated(Moon, moon.start, fedavg.update),
}
