"""Real servers on loopback that fail first: one for HTTP, one for SMTP."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.local_server import serving


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
    logins: list[str] = field(default_factory=list)
    """Users and passwords, as sent to a mail server."""


@asynccontextmanager
async def http_server(
    statuses: Sequence[int] = (), path: str = "/hook", location: str | None = None
) -> AsyncIterator[Received]:
    """A server that answers with ``statuses`` first, then with 200; ``location``: where its redirects lead."""
    received, left = Received(), list(statuses)

    async def take(request: web.Request) -> web.Response:
        received.attempts += 1
        received.headers.append(dict(request.headers))
        body = await request.json()
        status = left.pop(0) if left else 200
        if status == 200:
            received.bodies.append(body)
        headers = {} if location is None else {"Location": location}
        return web.Response(status=status, text=json.dumps({}), headers=headers)

    app = web.Application()
    app.router.add_post(path, take)
    async with serving(app) as received.address:
        yield received


@asynccontextmanager
async def smtp_server(
    answers: Sequence[str] = (), *, recipients: Sequence[str] = (), certificate: Path | None = None
) -> AsyncIterator[Received]:
    """A mail server that answers the end of a mail with ``answers`` first, then with 250, and recipients with
    ``recipients`` first, then with 250. With ``certificate``, a PEM file with its key, it offers STARTTLS, and takes a
    login and a mail only afterwards."""
    received, left, left_recipients = Received(), list(answers), list(recipients)
    tls = None if certificate is None else ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if tls is not None and certificate is not None:
        tls.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(*lines: str) -> None:
            *first, last = lines
            writer.write("".join(f"250-{line}\r\n" for line in first).encode() + f"{last}\r\n".encode())
            await writer.drain()

        encrypted = tls is None
        await say("220 test")
        while command := (await reader.readline()).decode().strip():
            verb = command.upper().partition(" ")[0]
            if verb == "EHLO" and tls is not None:
                await say("test", "250 AUTH PLAIN" if encrypted else "250 STARTTLS")
            elif verb == "STARTTLS" and tls is not None:
                await say("220 go ahead")
                await writer.start_tls(tls)
                encrypted = True
            elif verb == "QUIT":
                await say("221 bye")
                break
            elif verb != "EHLO" and not encrypted:
                await say("530 must issue STARTTLS first")
            elif verb == "AUTH":
                received.logins.append(base64.b64decode(command.split()[2]).decode())
                await say("235 ok")
            elif verb == "RCPT":
                await say(left_recipients.pop(0) if left_recipients else "250 ok")
            elif verb == "DATA":
                await say("354 go ahead")
                mail = (await reader.readuntil(b"\r\n.\r\n")).decode()
                received.attempts += 1
                answer = left.pop(0) if left else "250 taken"
                if answer.startswith("250"):
                    received.bodies.append(mail)
                await say(answer)
            else:
                await say("250 ok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    received.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield received
