"""CIFAR-100 as its authors publish it: the files ``train``, ``test`` and ``meta`` of ``cifar-100-python``.

Krizhevsky, Learning multiple layers of features from tiny images, 2009. The files are pickles, and a pickle
can run any code. These are read with the only names that arrays need, so a file with anything else in it is
refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asterism.data.images import ImageSet
from asterism.data.listing import Parts
from asterism.errors import AsterismError

_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]


def _latin1(text: str, encoding: str) -> bytes:
    """What Python 3 writes for bytes under protocol 2; no other codec is needed, so none is allowed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 2
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def recognises(path: Path) -> bool:
    """Whether the three files of the official folder are here."""
    return all((path / name).is_file() for name in ("train", "test", "meta"))


def read(path: Path) -> Parts:
    """Both parts with the fine labels; ids are the file names that the authors kept."""
    names = _field(_pickled(path / "meta"), "fine_label_names", path / "meta")
    classes = tuple(_text(name) for name in names)
    return Parts(_part(path / "train", classes), _part(path / "test", classes))


def _part(path: Path, classes: tuple[str, ...]) -> ImageSet:
    content = _pickled(path)
    data, labels, ids = (_field(content, key, path) for key in ("data", "fine_labels", "filenames"))
    shaped = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(labels), 3072)
    whole = all(isinstance(label, int) and 0 <= label < len(classes) for label in labels)
    if not shaped or not whole or len(ids) != len(labels):
        raise AsterismError("not a part of CIFAR-100: images, labels and names disagree", where=str(path))
    pixels = torch.from_numpy(data.reshape(-1, 3, 32, 32))
    return ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), [_text(id) for id in ids], classes)


def _pickled(path: Path) -> Any:
    try:
        return _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # whatever a damaged or hostile pickle provokes
        raise AsterismError(
            f"not a file of CIFAR-100: {error}", where=str(path), fix="unpack the official archive again"
        ) from None


def _field(content: Any, key: str, path: Path) -> Any:
    value = content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None
    if value is None:
        raise AsterismError(f"not a file of CIFAR-100: no {key!r} in it", where=str(path))
    return value


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
