"""Arrays in an ``.npz`` file: ``images`` (n, h, w) or (n, h, w, c) uint8 and ``labels`` (n,).

``classes`` (names), ``test_images`` and ``test_labels`` may be there too. A label of −1 means unlabelled.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asterism.data.images import UNLABELLED, ImageSet
from asterism.data.listing import Parts
from asterism.errors import AsterismError

KEYS = ("images", "labels", "classes", "test_images", "test_labels")


def recognises(path: Path) -> bool:
    """Whether ``path`` is an .npz file."""
    return path.suffix.lower() == ".npz" and path.is_file()


def read(path: Path) -> Parts:
    """Both parts; without ``classes`` the names are class-0, class-1 and so on."""
    arrays = _arrays(path)
    for key in ("images", "labels", *(("test_labels",) if "test_images" in arrays else ())):
        if key not in arrays:
            raise AsterismError(f"no array {key!r}", where=str(path), fix=f"the arrays are {', '.join(KEYS)}")
    labels = [arrays[key] for key in ("labels", "test_labels") if key in arrays]
    if "classes" in arrays:
        classes = tuple(str(name) for name in arrays["classes"])
    else:
        classes = tuple(f"class-{i}" for i in range(1 + max(int(part.max(initial=-1)) for part in labels)))
    test = _part(arrays, "test_", classes, path) if "test_images" in arrays else None
    return Parts(_part(arrays, "", classes, path), test)


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        with path.open("rb") as stored:  # np.load would leave a damaged file open
            file = np.load(stored, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {key: file[key] for key in KEYS if key in file}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise AsterismError(f"not an array file: {error}", where=str(path)) from None


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str, classes: tuple[str, ...], path: Path) -> ImageSet:
    images, labels = arrays[f"{prefix}images"], arrays[f"{prefix}labels"]
    where = f"{path}, {prefix}images"
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise AsterismError(
            f"images are {images.dtype} {images.shape}",
            where=where,
            fix="store uint8 (n, h, w) or (n, h, w, 3)",
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise AsterismError(f"{len(images)} images, labels are {labels.dtype} {labels.shape}", where=where)
    if labels.size and not UNLABELLED <= labels.min() <= labels.max() < len(classes):
        raise AsterismError(
            f"labels reach from {labels.min()} to {labels.max()}, for {len(classes)} classes", where=where
        )
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    ids = [f"{prefix}{i}" for i in range(len(images))]
    pixels = torch.from_numpy(np.ascontiguousarray(planes))
    return ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)), ids, classes)
