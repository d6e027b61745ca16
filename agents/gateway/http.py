"""What all endpoints of the gateway share: bodies, errors in the form of each API, streams, limits."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpProcessingError

from headrace.agents.gateway.call_metrics import CallMetrics
from headrace.agents.gateway.canonical import Api, BadRequest
from headrace.agents.gateway.client_errors import EXPECTED, error_of, refused
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind, anthropic_error, openai_error
from headrace.agents.gateway.limits import Exceeded, Limiter, Unit

log = logging.getLogger(__name__)

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

UNSENT_BYTES: Final = 64 * 1024
"""Bytes of a stream that may wait for a slow client; beyond them the engine's answer waits."""

STALLED_S: Final = 300.0
"""How long a client may read nothing of its stream, in seconds; then it has left: its call holds an engine."""

SESSION_IN_PATH: Final = "{session:[^/]+}"
"""Part of a route that names a session: any text, also with the braces that aiohttp leaves out by default."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_decode = msgspec.json.Decoder().decode


class _Stream(web.StreamResponse):
    """A response whose head leaves with its first bytes: a system call less for each answer."""

    _send_headers_immediately = False  # aiohttp's own; were it gone, the head would only leave by itself


class Outlet:
    """The connection to a client; see :class:`~headrace.agents.gateway.calls.Outlet`."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._writer: AbstractStreamWriter | None = None
        self._transport: asyncio.Transport | None = None
        self._is_chunked = request.version >= HttpVersion11
        self._has_sent_head = False
        self.response: web.StreamResponse | None = None
        """What was sent; ``None`` if nothing was."""

    async def start(self, headers: Mapping[str, str], data: bytes) -> None:
        """Begin a stream: status, headers and ``data``; without data they are sent with what follows."""
        stream = _Stream(headers={"Content-Type": EVENTS, "Cache-Control": "no-cache", **headers})
        self.response = stream
        self._request[HAS_BEGUN] = True
        self._writer = await stream.prepare(self._request)
        assert self._writer is not None
        if data:
            await self._writer.write(data)
            self._has_sent_head = True
        self._transport = self._request.transport

    def push(self, data: bytes) -> bool:
        """Send the next bytes of a stream, which are not empty; return whether the client takes more at once."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        if not self._has_sent_head:
            assert self._writer is not None
            self._writer.send_headers()
            self._has_sent_head = True
        # One chunk (RFC 9112, 7.1) per call: aiohttp's writer costs more than the chunk.
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        return transport.get_write_buffer_size() <= UNSENT_BYTES

    async def end(self, data: bytes) -> None:
        """Send the last bytes of a stream, with its end."""
        assert self.response is not None
        await self.response.write_eof(data)

    async def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer."""
        response = json_response(body, headers=headers)
        self.response = response
        self._request[HAS_BEGUN] = True
        await response.prepare(self._request)
        await response.write_eof()

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent. Raises ``ConnectionError`` once it reads nothing."""
        transport, writer = self._transport, self._writer
        if transport is None or writer is None:
            return None
        while True:
            unsent = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(STALLED_S):
                    return await writer.drain()
            except TimeoutError as error:
                if transport.get_write_buffer_size() >= unsent:
                    transport.abort()
                    raise ConnectionResetError(f"the client has read nothing for {STALLED_S:g} s") from error


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response of JSON."""
    return web.Response(body=body, status=status, headers={"Content-Type": JSON, **(headers or {})})


def error_response(request: web.Request, api: Api | None, error: ApiError) -> web.Response:
    """Return ``error`` in the form of ``api``; ``None``: of the API that the client of ``request`` speaks."""
    is_anthropic = api is Api.MESSAGES
    if api is None:
        is_anthropic = "anthropic-version" in request.headers or "/v1/messages" in request.path
    written = (anthropic_error if is_anthropic else openai_error)(error)
    return json_response(written.body, written.status, written.headers)


def new_request_id() -> str:
    """Return an id of a request, for the logs of both sides."""
    return f"req_{secrets.token_hex(12)}"


async def json_body(request: web.Request, admit_size: Callable[[int], None]) -> dict[str, Any]:
    """Return the body of ``request``, a JSON object.

    ``admit_size`` is called with its length in bytes before it is decoded, and raises what refuses the request.
    Raises :class:`BadRequest`, and ``CallRefused`` if it is too large.
    """
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise refused(
            ErrorKind.TOO_LARGE, f"the request is larger than {request.app[MAX_BODY]:,} bytes (max_request_bytes)"
        ) from None
    except web.RequestPayloadError as error:
        reason = error.__cause__.message if isinstance(error.__cause__, HttpProcessingError) else str(error)
        raise BadRequest("body", f"cannot be read: {reason}") from None
    admit_size(len(data))
    try:
        body = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("body", f"is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("body", "must be a JSON object")
    return body


MAX_BODY: Final = web.AppKey("max_body", int)
"""Largest body, in bytes."""


def admit(limiter: Limiter, key: str, size: int, why: Callable[[Exceeded], str] | None = None) -> None:
    """Count a request of ``size`` bytes against the limits of ``key``, usually a tenant. Raises ``CallRefused`` if they
    are exceeded, with what ``why`` says; by default it names the option of the limit."""
    # Tokens are charged once they are known: a key that is in debt waits.
    needs = {Unit.REQUESTS: 1.0, Unit.BYTES: float(size), Unit.TOKENS: 0.0}
    exceeded = limiter.admit(key, needs, asyncio.get_running_loop().time())
    if exceeded is not None:
        raise refused(ErrorKind.RATE_LIMIT, (why or _limit_text)(exceeded), retry_after_s=exceeded.retry_after_s)


def _limit_text(exceeded: Exceeded) -> str:
    unit, option = exceeded.unit, f"gateway.{exceeded.unit}_per_s"
    if exceeded.retry_after_s is None:
        return f"the request needs more {unit} at once than its tenant may use: send less, or raise {option}"
    return f"the key's tenant has used its {unit} per second ({option}): try again in {exceeded.retry_after_s:.1f} s"


def guarded(
    api: Api | None, handler: Handler, metrics: CallMetrics, headers: Mapping[str, str] | None = None
) -> Handler:
    """Return ``handler`` with errors answered as :func:`error_response` does, with ``headers``; a bug is logged."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request_id = new_request_id()
        request[REQUEST_ID] = request_id
        try:
            return await handler(request)
        except EXPECTED as error:
            told = error_of(error)
        except RecursionError:  # deep JSON that could be read, and cannot be written again among other JSON
            told = error_of(BadRequest("body", "is nested too deeply"))
        except (ConnectionError, asyncio.CancelledError):
            metrics.left(api or Api.CHAT)
            raise
        except web.HTTPException:
            raise
        except Exception:
            resource = request.match_info.route.resource  # not the path itself, which may hold a token
            log.exception("request %s to %s failed", request_id, resource and resource.canonical)
            told = ApiError(ErrorKind.SERVER, f"the gateway failed; its log has the reason under {request_id}")
        metrics.failed(api or Api.CHAT, told.kind)
        if request.get(HAS_BEGUN):
            raise ConnectionError("an answer that had begun is cut")  # closes the connection
        response = error_response(request, api, replace(told, request_id=request_id))
        response.headers.update(headers or {})
        return response

    return handle


HAS_BEGUN: Final = web.RequestKey("has_begun", bool)
"""Whether an answer has begun."""

REQUEST_ID: Final = web.RequestKey("request_id", str)
"""Id of a request."""
