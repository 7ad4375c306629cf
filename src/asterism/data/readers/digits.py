"""Handwritten digits that scikit-learn brings along: 1,797 real images of 8 × 8 pixels, no download.

Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI repository, 1998.
"""

from __future__ import annotations

import numpy as np
import torch

from asterism.data.images import ImageSet
from asterism.data.listing import Parts

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def read() -> Parts:
    """All images as one grey training part; stored levels 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    ids = [f"digit-{i:04d}" for i in range(len(pixels))]
    return Parts(ImageSet(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)), ids, CLASSES), None)
