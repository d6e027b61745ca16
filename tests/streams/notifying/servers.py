"""Real servers on loopback that fail first: one for HTTP, one for SMTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Received:
    """What a server was sent."""

    address: str = ""
    """Where it listens."""
    bodies: list[Any] = field(default_factory=list)
    """Bodies that it took."""
    attempts: int = 0
    """Requests, taken or not."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Headers of the requests."""


@asynccontextmanager
async def http_server(statuses: Sequence[int] = (), path: str = "/hook") -> AsyncIterator[Received]:
    """A server that answers with ``statuses`` first, then with 200."""
    received, left = Received(), list(statuses)

    async def take(request: web.Request) -> web.Response:
        received.attempts += 1
        received.headers.append(dict(request.headers))
        body = await request.json()
        status = left.pop(0) if left else 200
        if status == 200:
            received.bodies.append(body)
        return web.Response(status=status, text=json.dumps({}))

    app = web.Application()
    app.router.add_post(path, take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # aiohttp has no other way to ask
    received.address = f"http://127.0.0.1:{port}"
    try:
        yield received
    finally:
        await runner.cleanup()


@asynccontextmanager
async def smtp_server(answers: Sequence[str] = ()) -> AsyncIterator[Received]:
    """A mail server that answers the end of a mail with ``answers`` first, then with 250."""
    received, left = Received(), list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())
            await writer.drain()

        await say("220 test")
        while command := (await reader.readline()).decode().strip().upper():
            if command.startswith("DATA"):
                await say("354 go ahead")
                mail = (await reader.readuntil(b"\r\n.\r\n")).decode()
                received.attempts += 1
                answer = left.pop(0) if left else "250 taken"
                if answer.startswith("250"):
                    received.bodies.append(mail)
                await say(answer)
            elif command.startswith("QUIT"):
                await say("221 bye")
                break
            else:
                await say("250 ok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    received.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield received
