"""Representations of a site's images as the model in its worker gives them: what is clustered, screened and drawn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from asterism.data.augment import plain
from asterism.site import Share
from asterism.worker import Worker

BATCH = 1024


@torch.no_grad()
def representations(worker: Worker, share: Share) -> Iterator[Tensor]:
    """Representations (n, d) of a share's images, batch by batch in the order of its rows; at least one batch."""
    worker.network.eval()
    if len(share) == 0:
        yield torch.empty(0, worker.layout.features, device=worker.device)
        return
    for chosen in torch.split(share.indices, BATCH):
        yield worker.network.represent(plain(share.images.pixels[chosen]))


def represented(worker: Worker, share: Share) -> Tensor:
    """The same of all images at once."""
    return torch.cat(list(representations(worker, share)))
