"""A scripted endpoint on the loopback interface: answers in order, and what was asked."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from tests.local_server import serving


@asynccontextmanager
async def endpoint(answer: Callable[[str, Any], Any]) -> AsyncIterator[tuple[aiohttp.ClientSession, str, list[Any]]]:
    """Serve ``answer(path, body)`` as JSON, or as a status if it is an int; gives a client, the address, the bodies."""
    asked: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body)
        found = answer(request.path, body)
        if isinstance(found, int):
            return web.Response(status=found, text="no")
        return web.json_response(found) if not isinstance(found, str) else web.Response(text=found)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    async with serving(app, access_log=None) as url, aiohttp.ClientSession() as http:
        yield http, url, asked
