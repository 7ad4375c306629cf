"""Orchestra's two clusterings on the unit sphere: projections into a site's centroids, those into the federation's.

Paper: Lubana et al., *Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering*, ICML 2022. Both
balance their clusters by optimal transport, so that no centroid takes everything and none stands for one image alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from asterism.transport import balanced

EPSILON = 1 / 25  # entropy's weight of both transports
STEPS, SCALINGS = 5, 10  # of the local clustering
SERVER_SCALINGS = 30  # of at most 100; after the fit, cosines to the centroids of 100 were 0.9987 and above


def local_centroids(z: Tensor, count: int, rng: torch.Generator, *, floor: int = 0) -> Tensor:
    """At most ``count`` unit centroids of unit projections z (n, d), of clusters of about equal size.

    A centroid that in the end holds no projection, or fewer than ``floor``, is left out.
    """
    centroids = z[torch.randperm(len(z), generator=rng)[:count]]
    sizes = torch.zeros(len(centroids), dtype=torch.int64)
    for _ in range(STEPS):
        nearest = balanced(z @ centroids.T, EPSILON, SCALINGS).argmax(dim=1)
        sizes = torch.bincount(nearest, minlength=len(centroids))
        means = normalize(torch.zeros_like(centroids).index_add_(0, nearest, z), dim=1)
        centroids = torch.where(sizes[:, None] > 0, means, centroids)
    return centroids[sizes >= max(1, floor)]


def global_centroids(pool: Tensor, start: Tensor, temperature: float, steps: int) -> Tensor:
    """Unit centroids (c, d), trained from ``start`` so that the pool's soft assignments come near balanced ones."""
    centroids = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([centroids], lr=0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        scores = pool @ centroids.T
        wanted = balanced(scores, EPSILON, SERVER_SCALINGS)
        loss = -cosine_similarity(wanted, (scores / temperature).softmax(dim=1)).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            centroids.copy_(normalize(centroids, dim=1))
    return centroids.detach()
