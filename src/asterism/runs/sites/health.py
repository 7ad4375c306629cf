"""The status page on loopback: ``/health`` for a watcher, ``/status`` for a person. It shows no data and no model."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class Health:
    """Answers on loopback until it is closed."""

    def __init__(self, port: int, status: Path, well: Callable[[], bool]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path in ("/health", "/status")
                body = status.read_bytes() if known and status.exists() else b"{}"
                self.send_response((200 if well() else 503) if known else 404)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing: a watcher asks every few seconds."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()
