"""Orders and replies as they travel: a line of JSON and one flat array of bytes, whatever carries them.

The bytes are a safetensors file: every tensor's name, type and shape in one header, then the numbers. No object of a
program is ever rebuilt from what came over a wire, and what cannot be read is an error with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from safetensors import SafetensorError
from safetensors.torch import load, save

from asterism.aggregate import Outcome
from asterism.errors import AsterismError
from asterism.flow import Ask, Collect, Failure, Reason, Reply, Sum, Tensors, Version
from asterism.runs.parcel import FORMAT, Parcel
from asterism.runs.store import apart

KINDS: Mapping[str, type[Ask]] = {"sum": Sum, "collect": Collect}


@dataclass(frozen=True)
class Order:
    """An ask as one site gets it; ``run`` names the federation's run, and nobody else in the round is named."""

    run: str
    ask: Ask


def packed_order(run: str, ask: Ask) -> Parcel:
    """The order to run an ask's task: the same bytes for every participant, so a broadcast is sent once."""
    kind = "collect" if isinstance(ask, Collect) else "sum"
    described = {
        "format": FORMAT, "run": run, "kind": kind, "task": ask.task, "version": asdict(ask.version),
        "options": dict(ask.options),
    }  # fmt: skip
    return Parcel(json.dumps(described, ensure_ascii=False), packed(ask.tensors))


def unpacked_order(parcel: Parcel, participant: str) -> Order:
    """The order in a parcel, addressed to ``participant``."""
    described = _described(parcel)
    try:
        version, kind = Version(**described["version"]), KINDS[described["kind"]]
        ask = kind((participant,), described["task"], unpacked(parcel.body), version, described["options"])
        return Order(described["run"], ask)
    except (KeyError, TypeError) as error:
        raise AsterismError(f"not an order: {error!r}") from None


def packed_reply(outcome: Outcome) -> Parcel:
    """A reply, or the reason why there is none."""
    if isinstance(outcome, Failure):
        return Parcel(json.dumps({"format": FORMAT, "failure": asdict(outcome)}, ensure_ascii=False), b"")
    described = {
        "format": FORMAT, "weight": outcome.weight, "metrics": dict(outcome.metrics),
        "version": None if outcome.version is None else asdict(outcome.version),
    }  # fmt: skip
    return Parcel(json.dumps(described, ensure_ascii=False), packed(outcome.tensors))


def unpacked_reply(parcel: Parcel, participant: str) -> Outcome:
    """What ``participant`` answered; a parcel that nobody can read counts as a refused reply."""
    try:
        described = _described(parcel)
        failure = described.get("failure")
        if failure is not None:
            return Failure(participant, _reason(failure["reason"]), str(failure["detail"]))
        version = None if described["version"] is None else Version(**described["version"])
        metrics = {str(name): float(amount) for name, amount in described["metrics"].items()}
        return Reply(unpacked(parcel.body), float(described["weight"]), metrics, version)
    except (AsterismError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Failure(participant, "rejected", f"no reply that can be read: {error}")


def packed(tensors: Tensors) -> bytes:
    """Tensors as one array of bytes, equal for equal tensors."""
    return bytes(save(apart(tensors)))


def unpacked(body: bytes) -> dict[str, Any]:
    """The tensors in an array of bytes."""
    try:
        return dict(load(body))
    except SafetensorError as error:
        raise AsterismError(f"not tensors: {error}") from None


def _described(parcel: Parcel) -> dict[str, Any]:
    try:
        described = json.loads(parcel.header)
    except ValueError as error:
        raise AsterismError(f"no header: {error}") from None
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise AsterismError(f"not a header of format {FORMAT}", fix="both sides must run the same version")
    return described


def _reason(given: object) -> Literal["exception", "unavailable", "timeout", "rejected"]:
    return next((reason for reason in get_args(Reason) if reason == given), "exception")
