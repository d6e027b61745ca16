"""A TCP proxy with faults on demand: reset connections, transfer nothing, or refuse new connections."""

import asyncio
import contextlib

from headrace.deploy.system.ports import HOST

_CHUNK = 256 * 1024


class Proxy:
    """Forwards connections to ``port`` to ``target_port``, both on the loopback interface."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def listen(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._connected, HOST, self.port, limit=_CHUNK)

    def refuse(self) -> None:
        """Refuse new connections until :meth:`listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Transfer nothing in either direction until :meth:`flow`. Connections stay open, and new ones are accepted."""
        self._flowing.clear()

    def flow(self) -> None:
        """Resume the transfer of held data."""
        self._flowing.set()

    async def close(self) -> None:
        """Refuse new connections, reset open ones and stop."""
        self.refuse()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            there, back = await asyncio.open_connection(HOST, self.target_port, limit=_CHUNK)
        except OSError:
            self._drop(writer)
            return
        self._open.add(back)
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, sink, (writer, back)))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        """Forward one direction; when it ends, the connection ends."""
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        for writer in both:
            self._drop(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.transport.abort()
