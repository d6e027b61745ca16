"""The proxy fails on demand, and otherwise forwards unchanged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.deploy.system.ports import HOST, free_port
from tests.chaos.proxy import Proxy


@asynccontextmanager
async def echo_behind_a_proxy() -> AsyncIterator[Proxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    proxy = Proxy(free_port(), server.sockets[0].getsockname()[1])
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
        server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, proxy: Proxy) -> "Client":
        return cls(*await asyncio.open_connection(HOST, proxy.port))

    async def echo_of(self, word: bytes) -> bytes:
        self.writer.write(word)
        return await self.reader.read(1024)


async def test_data_is_forwarded_both_ways() -> None:
    async with echo_behind_a_proxy() as proxy:
        client = await Client.to(proxy)
        assert await client.echo_of(b"one") == b"one"
        assert await client.echo_of(b"x" * 1000) == b"x" * 1000
        client.writer.close()


async def test_cut_connections_are_reset_and_new_ones_work() -> None:
    async with echo_behind_a_proxy() as proxy:
        client = await Client.to(proxy)
        assert await client.echo_of(b"one") == b"one"
        proxy.cut()
        with suppress(ConnectionError):
            assert await client.echo_of(b"two") == b""
        assert await (await Client.to(proxy)).echo_of(b"three") == b"three"


async def test_a_stalled_connection_carries_nothing_and_loses_nothing() -> None:
    async with echo_behind_a_proxy() as proxy:
        client = await Client.to(proxy)
        assert await client.echo_of(b"one") == b"one"
        proxy.stall()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.echo_of(b"two"), 0.2)
        proxy.flow()
        assert await client.reader.read(1024) == b"two"


async def test_connections_are_refused_until_the_proxy_listens_again() -> None:
    async with echo_behind_a_proxy() as proxy:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await Client.to(proxy)
        await proxy.listen()
        assert await (await Client.to(proxy)).echo_of(b"one") == b"one"
