"""The app that Flower starts at a site for every message: it hands the parcel to the site's own participant.

It imports no torch and knows no task, so it is ready at once. Where the images are, what is answered and what is
refused is decided by the process that ``asterism join`` keeps (``asterism.runs.sites.residence``).
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from asterism.errors import AsterismError
from asterism.runs.flower.records import replied
from asterism.runs.sites.doorway import asked

SOCKET = "socket"  # of the node's configuration: where its participant listens

app = ClientApp()


@app.query("order")
def order(message: Message, context: Context) -> Message:
    """The participant's reply to an order."""
    socket = context.node_config.get(SOCKET)
    if socket is None:
        raise AsterismError("this node has no participant", fix=f"start it with asterism join, which sets {SOCKET!r}")
    return replied(message, lambda parcel: asked(Path(str(socket)), parcel))
