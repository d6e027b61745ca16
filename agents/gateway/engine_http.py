"""HTTP/1.1 to one engine: connections that are used again, responses that arrive in parts.

    async with EngineHttp("http://127.0.0.1:8000", headers) as http:
        response = await http.request("POST", "/inference/v1/generate", body)
        while part := await response.read(): ...

A call of 512 tokens arrives in dozens of small parts, and each passes through here: what the network brought goes
from the parser (llhttp, by httptools) to the reader in one step. A client library for all purposes spends more
processor time on a call than everything else that the gateway does. Redirects, cookies, compression and proxies are
not supported; vLLM uses none.
"""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import unquote, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

CONNECT_S: Final = 10.0
"""Longest time until a connection is made, in seconds."""

IDLE_S: Final = 4.0
"""How long an unused connection is kept, in seconds; vLLM closes one after five, at a moment nobody can foresee."""

READ_AHEAD_BYTES: Final = 256 * 1024
"""Bytes of a response that may wait for their reader; beyond them the engine has to wait."""

MAX_HEAD_BYTES: Final = 64 * 1024
"""Largest head of a response."""


class ConnectionBroke(ConnectionError):
    """A connection ended before its response, or what came is not HTTP."""


class Response:
    """The response to one request. Read it to its end, or :meth:`close` it."""

    def __init__(self, connection: "_Connection", read_timeout_s: float) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in small letters."""
        self.is_complete = False
        """Whether all of it has arrived."""
        self._connection = connection
        self._timeout_s = read_timeout_s
        self._loop = asyncio.get_running_loop()
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._has_head = False
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._receive: Callable[[bytes], bool] | None = None
        self._has_refused = False
        self._arrived_at = self._loop.time()
        self._timer = self._loop.call_at(self._arrived_at + read_timeout_s, self._look_at_time)

    async def head(self) -> None:
        """Wait for status and headers. Raises ``OSError``."""
        while not self._has_head:
            if self._failure is not None:
                raise self._failure
            await self._arrival()

    async def read(self) -> bytes:
        """Return the next bytes of the body, as many as have arrived; empty at its end. Raises ``OSError``."""
        while not self._parts:
            if self._failure is not None:
                raise self._failure
            if self.is_complete:
                return b""
            await self._arrival()
        return self._taken()

    def _taken(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._size > READ_AHEAD_BYTES and not self.is_complete:
            self._arrived_at = self._loop.time()
            self._connection.resume()
        self._size = 0
        return data

    async def pour(self, receive: Callable[[bytes], bool]) -> bool:
        """Pass the body on to ``receive`` as it arrives: each part in the very step in which the event loop reads it,
        without waking a task.

        ``receive`` returns whether it takes more at once, and raises nothing. Returns whether the body has ended;
        ``False``: ``receive`` took no more. Raises ``OSError``.
        """
        try:
            while True:
                if self._parts:
                    if not receive(self._taken()):
                        return False
                elif self._failure is not None:
                    raise self._failure
                elif self.is_complete:
                    return True
                else:
                    self._receive = receive
                    await self._arrival()
                    if self._has_refused:
                        return False
        finally:
            self._receive, self._has_refused = None, False

    def close(self) -> None:
        """Give up what has not arrived: the connection is closed, and vLLM aborts the request."""
        if not self.is_complete:
            self._fail(ConnectionBroke("the response was given up"))
            self._connection.abort()

    def feed(self, data: bytes) -> None:
        """Take bytes from the network."""
        if not self._has_head:
            self._head_bytes += len(data)
        problem = ""
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            problem = f"what came is not HTTP: {error!r}"
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            problem = f"the head of a response has more than {MAX_HEAD_BYTES:,} bytes"
        if problem:
            is_complete = self.is_complete
            if not is_complete:
                self._fail(ConnectionBroke(problem))
            self._connection.abort()
            if not is_complete:
                return
        if self.is_complete:
            self._parser = None  # which refers to this response: without garbage collection both would stay
        self._arrived_at = self._loop.time()
        if self._receive is not None and self._parts and not self._receive(self._taken()):
            self._receive, self._has_refused = None, True
        if self._size > READ_AHEAD_BYTES and not self.is_complete:
            self._connection.pause()
        if self._receive is None or self.is_complete:
            self._wake()

    def ended(self, error: Exception | None) -> None:
        """The connection is closed. A body without a stated length is complete then."""
        if self.is_complete:
            return
        if error is None and self._has_head and not self.headers.keys() & {"content-length", "transfer-encoding"}:
            self._finish(is_reusable=False)
            self._parser = None
            self._wake()
        elif isinstance(error, OSError):
            self._fail(error)
        else:
            self._fail(ConnectionBroke("the connection was closed" if error is None else repr(error)))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins; a second one answers nothing that was asked."""
        if self.is_complete:
            raise ValueError("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; one that is repeated has its last value. Trailers are not kept."""
        if self._has_head:
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise ValueError(f"the trailers of a response have more than {MAX_HEAD_BYTES:,} bytes")
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is complete, unless it is that of an interim response."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        if not self._has_head:
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)
        self._size += len(data)

    def on_message_complete(self) -> None:
        """The response is complete, unless it is an interim one."""
        if self._has_head:
            assert self._parser is not None
            self._finish(is_reusable=bool(self._parser.should_keep_alive()))

    def _finish(self, *, is_reusable: bool) -> None:
        self.is_complete = True
        self._timer.cancel()
        self._connection.response_ended(is_reusable=is_reusable)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._parser = None
        self._timer.cancel()
        self._wake()

    async def _arrival(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look_at_time(self) -> None:
        # One timer for the whole response: setting it anew for each part would cost more than reading the part.
        now = self._loop.time()
        if self._size > READ_AHEAD_BYTES:
            self._arrived_at = now  # the engine waits for the reader
        if (due := self._arrived_at + self._timeout_s) > now:
            self._timer = self._loop.call_at(due, self._look_at_time)
            return
        self._fail(TimeoutError(f"nothing arrived for {self._timeout_s:g} s"))
        self._connection.abort()


class _Connection(asyncio.Protocol):
    """One connection; it has one response at a time."""

    def __init__(self, http: "EngineHttp") -> None:
        self._http = http
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._is_paused = False
        self.has_received = False
        """Whether anything arrived since the latest request was sent."""
        self.idle_since = 0.0

    def send(self, request: bytes, read_timeout_s: float) -> Response:
        """Send a request, and return its response, which has not arrived."""
        self.has_received = False
        if self._transport is None or self._transport.is_closing():
            raise ConnectionBroke("the connection was closed")
        response = self._response = Response(self, read_timeout_s)
        self._transport.write(request)
        return response

    def pause(self) -> None:
        """Read no more from the network."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read from the network again."""
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; the response in progress fails."""
        if (response := self._response) is not None:
            self._response = None
            response.ended(ConnectionBroke("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    def response_ended(self, *, is_reusable: bool) -> None:
        """The response is complete: another request may follow, or the connection is closed."""
        self._response = None
        self.resume()
        # What is left of a request that was answered early would be taken for the next one.
        if is_reusable and self.is_open and not self.has_unsent:
            self._http.take_back(self)
        else:
            self.abort()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes of the request have not been sent."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio has connected."""
        self._transport = cast(asyncio.Transport, transport)  # that of other event loops has another base class
        self._http.opened(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived; what no response expects ends the connection."""
        self.has_received = True
        if self._response is None:
            self.abort()
        else:
            self._response.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._transport = None
        self._http.forget(self)
        if (response := self._response) is not None:
            self._response = None
            response.ended(exc)


class EngineHttp:
    """Requests to one server. Use it in an ``async with``, or ``await .close()``."""

    def __init__(self, url: str, headers: Mapping[str, str], *, read_timeout_s: float) -> None:
        """
        Args:
            url: ``http`` or ``https``, host, port and a path before those of requests; may have a user and a password.
            headers: Sent with each request.
            read_timeout_s: Longest time without a byte of a response.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"an engine's address begins with http:// or https:// and names a host, not {url[:80]!r}")
        self._host = parts.hostname
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._path = parts.path.rstrip("/")
        self._timeout_s = read_timeout_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        given = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*", **headers}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            given.setdefault("Authorization", f"Basic {b64encode(user.encode()).decode()}")
        self._head = "".join(f"{name}: {_header_value(value)}\r\n" for name, value in given.items())

    async def request(self, method: str, path: str, body: bytes | None, *, is_repeatable: bool = False) -> Response:
        """Send a request and return the response once its head has arrived.

        Args:
            method: As in HTTP.
            path: After that of the server's address.
            body: ``None`` for none.
            is_repeatable: Whether the request may be sent once more, on a new connection, if a used one is closed
                before any byte of a response. The server may have seen it then.

        Raises:
            OSError: Which includes ``TimeoutError``; there is no response.
        """
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body or b'')}\r\n\r\n"
        request = head.encode("latin-1") + (body or b"")
        if (used := self._unused()) is not None:
            try:
                return await self._sent(used, request)
            except ConnectionError:
                if used.has_received or not is_repeatable:
                    raise
        return await self._sent(await self._connect(), request)

    async def _sent(self, connection: _Connection, request: bytes) -> Response:
        """Send a request and return the response once its head has arrived. Raises ``OSError``."""
        response = connection.send(request, self._timeout_s)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    async def close(self) -> None:
        """Close all connections."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # asyncio closes the sockets now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def opened(self, connection: _Connection) -> None:
        """``connection`` is open."""
        self._open.add(connection)

    def take_back(self, connection: _Connection) -> None:
        """Keep ``connection`` for another request."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """``connection`` is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _unused(self) -> _Connection | None:
        """Return the connection that was used last, and close those that were not used for long."""
        since = asyncio.get_running_loop().time() - IDLE_S
        while self._idle and self._idle[0].idle_since < since:
            self._idle.pop(0).abort()
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), self._host, self._port, ssl=self._ssl
            )
        return connection


def _header_value(value: str) -> str:
    """Return ``value``; raises ``ValueError`` if it cannot stand in a header."""
    if not value.isprintable() or not value.isascii():
        raise ValueError("the engine's address or key has characters that HTTP does not allow in a header")
    return value
