"""Optimal transport between samples and classes: soft assignments whose classes get the masses that are asked for.

Sinkhorn's algorithm in the logarithmic domain, by its potentials: no exponential is ever taken of a raw score, so that
scores may be as large as they like in any precision.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn(
    scores: Tensor, epsilon: float, iterations: int, *, classes: Tensor | None = None, samples: Tensor | None = None
) -> Tensor:
    """Assignments (n, c) of samples to classes, each row a distribution, so that the classes' masses are as asked for.

    The transport plan is the assignments times the samples' masses. Rows are exact whatever the number of iterations;
    the masses of classes are met in the limit. No gradient runs through it.

    Args:
        scores: (n, c), how well samples fit classes.
        epsilon: the entropy's weight; the smaller, the harder the assignments.
        iterations: how often the classes' masses are met in turn with the samples'.
        classes: (c,) masses of the classes; equal without. A class of mass 0 gets nothing.
        samples: (n,) masses of the samples; equal without. One of mass 0 is assigned and counts for nothing.
    """
    n, c = scores.shape
    wide = torch.promote_types(scores.dtype, torch.float32)
    log_kernel = scores.detach().to(wide) / epsilon
    of_samples, of_classes = _log_shares(samples, n, log_kernel), _log_shares(classes, c, log_kernel)
    scaled, potential = of_samples, torch.zeros_like(of_classes)
    for _ in range(iterations):
        potential = of_classes - (log_kernel + scaled[:, None]).logsumexp(dim=0)
        scaled = of_samples - (log_kernel + potential).logsumexp(dim=1)
    return (log_kernel + potential).softmax(dim=1)


def balanced(cosines: Tensor, epsilon: float, iterations: int) -> Tensor:
    """What ``sinkhorn`` gives for equal masses, by products of matrices, some times faster for few samples.

    Only for scores between −1 and 1 and an epsilon of 1/40 or more: exponentials of others could leave float32.
    """
    kernel = ((cosines.detach() - 1) / epsilon).exp()
    n, c = kernel.shape
    of_samples = samples = kernel.new_full((n,), 1 / n)
    classes = kernel.new_full((c,), 1 / c)
    for _ in range(iterations):
        of_classes = classes / (of_samples @ kernel)
        of_samples = samples / (kernel @ of_classes)
    return kernel * of_classes * (n * of_samples)[:, None]


def _log_shares(masses: Tensor | None, count: int, like: Tensor) -> Tensor:
    """Logarithms of masses (count,) that sum to 1; −inf where there is none."""
    given = like.new_ones(count) if masses is None else masses.to(like)
    return (given / given.sum()).log()
