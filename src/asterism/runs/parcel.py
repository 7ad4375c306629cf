"""What travels between a server and a site, before anyone looks inside. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

FORMAT = 1


@dataclass(frozen=True)
class Parcel:
    """What travels: ``header`` is a JSON object as text, ``body`` the tensors as one array of bytes."""

    header: str
    body: bytes

    def __len__(self) -> int:
        return len(self.header.encode()) + len(self.body)

    @property
    def digest(self) -> str:
        """A hash that two parcels share only if they are the same."""
        found = hashlib.blake2b(self.header.encode(), digest_size=16)
        found.update(self.body)
        return found.hexdigest()


def refusal(detail: str) -> Parcel:
    """The reply to what is no order."""
    failure = {"participant": "", "reason": "rejected", "detail": detail}
    return Parcel(json.dumps({"format": FORMAT, "failure": failure}), b"")
