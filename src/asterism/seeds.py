"""Named random generators: a draw's name is its seed, so adding one draw never changes another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def number(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose, e.g. ``number(seed, "clients", stage, round)``."""
    name = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(name, "big") >> 1


def generator(seed: int, *purpose: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for one purpose, stable when other draws come or go."""
    import torch

    return torch.Generator(device).manual_seed(number(seed, *purpose))
