"""The paper's losses as functions of tensors. z: (n, d) representations, prototypes: (c, d) head rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus


def prototype_contrastive_loss(z: Tensor, labels: Tensor, prototypes: Tensor, tau: float = 0.07) -> Tensor:
    """Eq. 4: each sample drawn to its class's prototype, away from the others and from samples of other classes.

    Departure: the paper prints the ratio without its logarithm and with plain dot products, which overflow at its
    τ; here it is the logarithm, of cosines (docs/departures.md).
    """
    z, prototypes = _unit(z), _unit(prototypes)
    to_prototypes = z @ prototypes.T / tau
    to_others = (z @ z.T / tau).masked_fill(labels[:, None] == labels, -torch.inf)
    positive = to_prototypes.gather(1, labels[:, None]).squeeze(1)
    return (torch.cat([to_prototypes, to_others], dim=1).logsumexp(dim=1) - positive).mean()


def known_class_loss(z: Tensor, labels: Tensor, prototypes: Tensor, eta: float, tau: float) -> Tensor:
    """L_T^L = CE + η·PCL, the loss of known class learning; the prototypes are the rows of the classifier."""
    loss = cross_entropy(_wide(z @ prototypes.T), labels)
    if eta == 0:
        return loss
    return loss + eta * prototype_contrastive_loss(z, labels, prototypes, tau)


def model_contrastive_loss(z: Tensor, from_global: Tensor, from_previous: Tensor, temperature: float) -> Tensor:
    """MOON's term: representations near those of the global model and far from those of the own previous one."""
    z = _unit(z)
    near, far = (z * _unit(from_global)).sum(dim=1), (z * _unit(from_previous)).sum(dim=1)
    # −log(e^near / (e^near + e^far)), with both similarities divided by the temperature.
    return softplus((far - near) / temperature).mean()


def _wide(values: Tensor) -> Tensor:
    """The values in float32 at least: half precision is widened, float64 stays what it is."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, in float32 at least; a row of zeros stays one."""
    vectors = _wide(vectors)
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    # Divided by 1 and not by a small number, a row of zeros gets a gradient of ordinary size.
    unit: Tensor = vectors / length.masked_fill(length == 0, 1.0)
    return unit
