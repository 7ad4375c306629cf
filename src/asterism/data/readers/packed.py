"""Shards written by ``asterism data pack``: ``index.json`` and safetensors files, read back bit-equal.

The index says ``format`` (1), ``name``, ``classes``, ``shape`` and, for ``train`` and ``test``, the ``count``
of images and the ``shards``, each with ``file``, ``count`` and ``sha256``. A shard holds ``pixels`` and
``labels``, and ``ids`` (and ``sites``, where known) as the UTF-8 bytes of a JSON list. Every shard is checked
against its hash before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.data.images import ImageSet
from asterism.data.listing import Parts
from asterism.errors import AsterismError

FORMAT = 1
INDEX = "index.json"


def recognises(path: Path) -> bool:
    """Whether an index lies here."""
    return (path / INDEX).is_file()


def read(folder: Path) -> Parts:
    """Both parts as they were packed."""
    index = _index(folder)
    try:
        return Parts(_part(folder, index, "train"), _part(folder, index, "test"))
    except (KeyError, TypeError, ValueError) as error:
        raise AsterismError(f"the index is damaged: {error}", where=str(folder / INDEX), fix="pack again") from None


def _index(folder: Path) -> Mapping[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AsterismError(f"the index is damaged: {error}", where=str(path), fix="pack again") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise AsterismError(
            f"not packed images of format {FORMAT}",
            where=str(path),
            fix="pack again with this version of asterism",
        )
    return index


def _part(folder: Path, index: Mapping[str, Any], name: str) -> ImageSet:
    part, classes = index[name], tuple(index["classes"])
    pixels = torch.empty((part["count"], *index["shape"]), dtype=torch.uint8)
    labels = torch.empty(part["count"], dtype=torch.int64)
    ids: list[str] = []
    sites: list[str] = []
    for shard in part["shards"]:
        tensors = _shard(folder / shard["file"], shard["sha256"])
        rows = slice(len(ids), len(ids) + shard["count"])
        pixels[rows], labels[rows] = tensors["pixels"], tensors["labels"]
        ids += names(tensors["ids"])
        sites += names(tensors["sites"]) if "sites" in tensors else []
    if len(ids) != part["count"]:
        raise ValueError(f"{name} has {len(ids)} of {part['count']} images")
    return ImageSet(pixels, labels, ids, classes, tuple(sites))


def names(stored: Tensor) -> list[str]:
    """The list of strings that a tensor of bytes holds."""
    return list(json.loads(stored.numpy().tobytes()))


def _shard(path: Path, sha256: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise AsterismError("a shard is missing", where=str(path), fix="copy it again, or pack again") from None
    if found != sha256:
        raise AsterismError(
            "a shard is damaged: its hash is not the index's",
            where=str(path),
            fix="copy it again, or pack again",
        )
    return load_file(path)
