"""A parcel as the content of a Flower message: one array, one line of text. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from asterism.errors import AsterismError
from asterism.runs.parcel import Parcel, refusal

TENSORS, HEADER = "tensors", "header"
ORDER = "query.order"  # the one type of message: what is to be done stands in the header


def content(parcel: Parcel) -> RecordDict:
    """The content of a message that carries ``parcel``."""
    # One array: each further one would cost calls of its own, at every site.
    array = Array("uint8", (len(parcel.body),), "bytes", parcel.body)
    return RecordDict({TENSORS: ArrayRecord({"flat": array}), HEADER: ConfigRecord({"json": parcel.header})})


def parcel(content: RecordDict) -> Parcel:
    """The parcel in a message's content."""
    arrays, header = content.array_records.get(TENSORS), content.config_records.get(HEADER)
    if arrays is None or header is None or "flat" not in arrays or not isinstance(header.get("json"), str):
        raise AsterismError("a message without a parcel")
    return Parcel(str(header["json"]), arrays["flat"].data)


def replied(message: Message, answer: Callable[[Parcel], Parcel]) -> Message:
    """The reply message to an order's message, made by whoever answers parcels."""
    try:
        found = parcel(message.content)
    except AsterismError as error:
        return Message(content(refusal(error.what)), reply_to=message)
    return Message(content(answer(found)), reply_to=message)
