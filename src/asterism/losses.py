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
    z, prototypes = unit(z), unit(prototypes)
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


def semantic_weighted_loss(z: Tensor, prototypes: Tensor, tau: float = 0.07, *, detach: bool = False) -> Tensor:
    """Eq. 9: distance to every prototype, weighted by how related the sample is to it.

    With ``detach`` the weights count as constants; the paper prints no such stop (docs/departures.md).
    """
    related = semantic_weights(z, prototypes, tau)
    if detach:
        related = related.detach()
    # By differences: through matrix products the root has no gradient for a sample that sits on its prototype.
    distances = torch.cdist(_wide(z), _wide(prototypes), compute_mode="donot_use_mm_for_euclid_dist")
    return (related * distances).sum(dim=1).mean()


def semantic_weights(z: Tensor, prototypes: Tensor, tau: float = 0.07) -> Tensor:
    """The weights of Eq. 9: softmax over the given prototypes of dot products divided by τ, (n, c)."""
    return (_wide(z) @ _wide(prototypes).T / tau).softmax(dim=1)


def pairwise_loss(probabilities: Tensor, same: Tensor, others: Tensor | None = None) -> Tensor:
    """Eq. 11: binary cross entropy over all ordered pairs, P_ij = p_i·p_j, ``same`` (n, n) of 0 and 1.

    With ``others``, the predictions of another view of the same images, P_ij = p_i·p'_j.
    """
    together = (probabilities @ (probabilities if others is None else others).T).clamp(1e-7, 1 - 1e-7)
    return torch.nn.functional.binary_cross_entropy(together, same.to(together))


def same_ranking(z: Tensor, top: int = 5) -> Tensor:
    """Pairs whose ``top`` largest features are the same set (rank statistics), (n, n) of bool.

    Ties, frequent among the zeros behind a ReLU, go to the lower feature number, so that the answer is one.
    """
    largest = z.detach().sort(dim=1, descending=True, stable=True).indices[:, :top]
    hot = torch.zeros_like(z, dtype=torch.float32).scatter_(1, largest, 1.0)
    return (hot @ hot.T) > min(top, z.shape[1]) - 0.5


def consistency_loss(one: Tensor, two: Tensor) -> Tensor:
    """Mean squared difference of the predictions (n, c) for two views of the same images."""
    return torch.nn.functional.mse_loss(one, two)


def two_view_loss(z: Tensor, rows: Tensor, top: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The pairwise loss by rank statistics of two views z (2n, d), and the share of pairs called alike.

    With a ``weight``, so much of the consistency of the two views' predictions is added.
    """
    one, two = (z @ rows.T).softmax(dim=1).chunk(2)
    same = same_ranking(z.chunk(2)[0], top)
    loss = pairwise_loss(one, same, two)
    if weight is not None:
        loss = loss + weight * consistency_loss(one, two)
    return loss, same.float().mean()


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Divergence of softened predictions from the teacher's, scaled by T² as usual."""
    soft = torch.nn.functional.log_softmax(_wide(logits) / temperature, dim=1)
    target = torch.nn.functional.log_softmax(_wide(teacher).detach() / temperature, dim=1)
    return torch.nn.functional.kl_div(soft, target, reduction="batchmean", log_target=True) * temperature**2


def model_contrastive_loss(z: Tensor, from_global: Tensor, from_previous: Tensor, temperature: float) -> Tensor:
    """MOON's term: representations near those of the global model and far from those of the own previous one."""
    z = unit(z)
    near, far = (z * unit(from_global)).sum(dim=1), (z * unit(from_previous)).sum(dim=1)
    # −log(e^near / (e^near + e^far)), with both similarities divided by the temperature.
    return softplus((far - near) / temperature).mean()


def assignment_loss(z: Tensor, target: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """Orchestra's term: cross entropy of z's soft assignments to unit centroids, given those of the target's view."""
    wanted = (unit(target.detach()) @ centroids.T / temperature).softmax(dim=1)
    return cross_entropy(unit(z) @ centroids.T / temperature, wanted)


def label_contrastive_loss(z: Tensor, labels: Tensor, temperature: float, chosen: Tensor | None = None) -> Tensor:
    """Mean of −log softmax of an image's similarities to the others, at those of its label; 0 where there are none.

    Args:
        z: (k, d) of length 1, every image in two views.
        labels: (k,).
        temperature: divides the similarities.
        chosen: (k,) of bool, the images that the loss looks at at all; all without.
    """
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    mine = labels.new_ones(len(z), dtype=torch.bool) if chosen is None else chosen
    others = others & mine
    # Finite, for a row without any others has a logarithm too; as small as a probability can be.
    log_p = (z @ z.T / temperature).masked_fill(~others, -1e4).log_softmax(dim=1)
    alike = others & (labels[:, None] == labels)
    each = log_p.masked_fill(~alike, 0).sum(dim=1) / alike.sum(dim=1).clamp_min(1)
    return -each.masked_fill(~mine, 0).sum() / mine.sum().clamp_min(1)


def prior_divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """KL of the mean prediction, of logits (n, c), from a prior (c,) that need not sum to 1."""
    mean = _wide(logits).softmax(dim=1).mean(dim=0)
    # A class that cannot be costs much, and not infinitely much.
    log_prior = (prior / prior.sum()).clamp_min(1e-5).log()
    return (mean * (mean.clamp_min(torch.finfo(mean.dtype).tiny).log() - log_prior)).sum()


def _wide(values: Tensor) -> Tensor:
    """The values in float32 at least: half precision is widened, float64 stays what it is."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, in float32 at least; a row of zeros stays one."""
    vectors = _wide(vectors)
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    # Divided by 1 and not by a small number, a row of zeros gets a gradient of ordinary size.
    divided: Tensor = vectors / length.masked_fill(length == 0, 1.0)
    return divided
