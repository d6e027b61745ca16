"""What a stream to a client costs in system calls."""

import asyncio
from unittest.mock import patch

import aiohttp
from aiohttp import web

from headrace.agents.gateway.http import Outlet
from tests.local_server import serving


async def test_the_head_of_a_stream_leaves_with_its_first_bytes() -> None:
    writes: list[bytes] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        transport, outlet = request.transport, Outlet(request)
        assert transport is not None
        write = transport.write
        with patch.object(transport, "write", lambda data: (writes.append(bytes(data)), write(data))):
            await outlet.start({"x-headrace-outcome": "new"}, b"first ")
            assert outlet.push(b"second ")
            await outlet.end(b"last")
        assert outlet.response is not None
        return outlet.response

    app = web.Application()
    app.router.add_get("/", handle)
    async with asyncio.timeout(30), serving(app) as url, aiohttp.ClientSession() as http, http.get(url) as response:
        assert await response.read() == b"first second last"
        assert response.headers["x-headrace-outcome"] == "new"
    assert [part.partition(b"\r\n\r\n")[2] or part for part in writes] == [
        b"6\r\nfirst \r\n", b"7\r\nsecond \r\n", b"4\r\nlast\r\n0\r\n\r\n"
    ]  # fmt: skip
