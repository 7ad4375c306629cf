"""The only door of a server that sites can reach: it passes their calls on and nothing else.

Flower answers sites, operators and its own programs at one port, and whoever reaches the operators' paths may run
code. So Flower listens on loopback, and this gate (Starlette under uvicorn, TLS on) lets through the paths of sites,
each by its full name, up to a size. It neither reads nor keeps what passes. Runs as a process of its own.
"""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

# What a registered site may call. Registering is not among it: keys are entered by the operator alone.
CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
LARGEST_CALL = 16 * 2**20  # bytes; Flower cuts arrays into objects of 5 MiB
SLOWEST = 120.0  # seconds
NOT_PASSED = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"}


def application(inner: str, authority: str) -> Starlette:
    """The gate before the server at ``inner`` (host:port on loopback), which shows a certificate of ``authority``."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context = ssl.create_default_context(cafile=authority)
        limits = httpx.Limits(max_connections=256)
        async with httpx.AsyncClient(verify=context, timeout=SLOWEST, limits=limits, trust_env=False) as client:
            app.state.client = client
            yield

    async def passed_on(request: Request) -> Response:
        content = await _content(request)
        if content is None:
            return PlainTextResponse("too large", 413)
        url = f"https://{inner}{request.url.path}"
        headers = [(name, value) for name, value in request.headers.raw if name.decode().lower() not in NOT_PASSED]
        try:
            answer = await request.app.state.client.post(url, content=content, headers=headers)
        except httpx.HTTPError:
            return PlainTextResponse("the server is starting, or has stopped", 503)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in NOT_PASSED}
        return Response(answer.content, answer.status_code, kept)

    routes = [Route(f"/v1/fleet/{call}", passed_on, methods=["POST"]) for call in CALLS]
    return Starlette(routes=routes, lifespan=lifespan)


async def _content(request: Request) -> bytes | None:
    """The body of a call, or None where it is too large; what is too large is never held."""
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) > LARGEST_CALL:
            return None
    return bytes(held)


def main() -> None:
    """Serves as the one argument, a JSON object, says: address, inner, authority, and certificate and key for TLS."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    host, _, port = given["address"].rpartition(":")
    tls = {"ssl_certfile": given["certificate"], "ssl_keyfile": given["key"]} if given.get("certificate") else {}
    uvicorn.run(
        application(given["inner"], given["authority"]), host=host.strip("[]"), port=int(port), log_level="warning",
        access_log=False, server_header=False, timeout_keep_alive=75, h11_max_incomplete_event_size=16_384, **tls,
    )  # fmt: skip


if __name__ == "__main__":
    main()
