"""A data set as safetensors shards below a given size, which load without decoding and come back bit-equal.

Everything is written into a folder beside the target, which is renamed when complete: a half-written one is
never seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.data.images import Dataset, ImageSet
from asterism.data.readers.packed import FORMAT, INDEX
from asterism.errors import AsterismError

HEADER = 1024  # bytes kept free in every shard for the header of safetensors, which takes about 300


def pack(dataset: Dataset, folder: Path, shard_bytes: int) -> int:
    """The number of shards, of at most ``shard_bytes`` each, that now lie in the new ``folder``."""
    if folder.exists():
        raise AsterismError("this folder exists already", where=str(folder), fix="name a new one, or remove it first")
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        index: dict[str, Any] = {
            "format": FORMAT,
            "name": dataset.name,
            "classes": list(dataset.train.classes),
            "shape": list(dataset.train.shape),
            "train": _part(dataset.train, partial, "train", shard_bytes),
            "test": _part(dataset.test, partial, "test", shard_bytes),
        }
        _keep(json.dumps(index, indent=1).encode(), partial / INDEX)
        partial.rename(folder)
    except OSError as error:
        raise AsterismError(
            f"cannot write: {error.strerror}", where=str(folder), fix="free some space, or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(index["train"]["shards"]) + len(index["test"]["shards"])


def _part(images: ImageSet, folder: Path, name: str, shard_bytes: int) -> dict[str, Any]:
    from safetensors.torch import save

    shards = []
    for number, rows in enumerate(_cuts(images, shard_bytes)):
        tensors = {
            "pixels": images.pixels[rows].contiguous(),
            "labels": images.labels[rows].contiguous(),
            "ids": _bytes(images.ids[rows]),
        }
        if images.sites:
            tensors["sites"] = _bytes(images.sites[rows])
        content = save(tensors)
        file = f"{name}-{number:05d}.safetensors"
        _keep(content, folder / file)
        digest = hashlib.sha256(content).hexdigest()
        shards.append({"file": file, "count": rows.stop - rows.start, "sha256": digest})
    return {"count": len(images), "shards": shards}


def _cuts(images: ImageSet, shard_bytes: int) -> Iterator[slice]:
    """Runs of rows whose shard stays within ``shard_bytes``."""
    channels, height, width = images.shape
    room, start, used = shard_bytes - HEADER, 0, 0
    for row in range(len(images)):
        named = [images.ids[row], *images.sites[row : row + 1]]
        size = channels * height * width + 8 + sum(len(json.dumps(name)) + 2 for name in named)
        if size > room:
            raise AsterismError(
                f"a shard of {shard_bytes} bytes has no room for one image of {size}",
                fix="allow larger shards",
            )
        if used + size > room:
            yield slice(start, row)
            start, used = row, 0
        used += size
    if used:
        yield slice(start, len(images))


def _bytes(names: Sequence[str]) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(list(names)).encode()), dtype=torch.uint8)


def _keep(content: bytes, path: Path) -> None:
    """Writes a file that is on the disk, not only on its way there, when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
