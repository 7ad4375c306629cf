"""The socket through which a short-lived process of a site reaches the site's participant. Imports no torch.

It is a UNIX socket inside the site's own folder, open to the user that joined and to nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread

from asterism.errors import AsterismError
from asterism.runs.parcel import Parcel

BACKLOG = 16


def asked(socket: Path, parcel: Parcel) -> Parcel:
    """What the participant behind ``socket`` answers."""
    try:
        with Client(str(socket), "AF_UNIX") as connection:
            _send(connection, parcel)
            return _received(connection)
    except (OSError, EOFError) as error:
        raise AsterismError(f"the site's participant does not answer: {error}", where=str(socket)) from None


class Doorway:
    """Takes parcels in at a socket, one after the other, until it is closed."""

    def __init__(self, socket: Path, answer: Callable[[Parcel], Parcel]) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        before = os.umask(0o177)  # the socket is never open to others, not even for an instant
        try:
            self._listener = Listener(str(socket), "AF_UNIX", backlog=BACKLOG)
        finally:
            os.umask(before)
        self._answer, self._socket = answer, socket
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # closed
                return
            with connection:
                try:
                    _send(connection, self._answer(_received(connection)))
                except (OSError, EOFError):  # whoever asked has gone; the next may ask again
                    continue

    def close(self) -> None:
        """Takes in no more parcels."""
        self._listener.close()
        self._socket.unlink(missing_ok=True)


def _send(connection: Connection, parcel: Parcel) -> None:
    connection.send_bytes(parcel.header.encode())
    connection.send_bytes(parcel.body)


def _received(connection: Connection) -> Parcel:
    header = connection.recv_bytes().decode()
    return Parcel(header, connection.recv_bytes())
