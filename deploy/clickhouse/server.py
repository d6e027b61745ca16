"""ClickHouse's HTTP interface for the embedded engine: any ClickHouse client works, without a ClickHouse server.

    curl -u "reader:$(cat .headrace/clickhouse-secrets/reader)" http://127.0.0.1:8123/ -d 'SELECT count() FROM steps'

One process owns the engine and its folder; all other processes are ordinary HTTP clients, so the embedded engine of a
laptop and the server of a cluster are one code path. Responses are uncompressed, which every client accepts and which
is fastest on loopback; request bodies may be compressed by gzip, deflate, lz4 or zstd.

``access`` checks accounts, and ``statements`` checks statements against the lists in ``allowed``.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.deploy.clickhouse.access import (
    AccessDenied,
    ClickHouseAccount,
    account_of,
    ensure_passwords,
    refuse_web_page,
)
from headrace.deploy.clickhouse.content_encoding import BodyTooLarge, UnknownEncoding, decompress
from headrace.deploy.clickhouse.engine import ChdbEngine, ChdbError, StatementResult
from headrace.deploy.clickhouse.insert_statement import split_insert
from headrace.deploy.system.http_server import serve

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest request body, before and after decompression, in bytes."""

MAX_STATEMENT_BYTES = 1024 * 1024
"""Longest statement, in bytes, without the data of an insert."""

SESSIONS = 4
"""Statements of one account that run in parallel."""

MAX_READ_BODY_BYTES = MAX_STATEMENT_BYTES + 64 * 1024
"""Largest request body of an account that only reads, in bytes: a statement with its parameters, without data."""

BODIES = {ClickHouseAccount.READER: 64, ClickHouseAccount.WRITER: 2 * SESSIONS}
"""Requests of each account whose bodies are in memory at the same time; further requests wait before they are read."""

BODY_SECONDS = 30.0
"""Time limit for receiving the whole body of a request, in seconds. Clients are on this machine."""

PIECE_BYTES = 1024 * 1024
"""Size of the pieces in which a response is written to the socket, in bytes."""

PIECE_SECONDS = 60.0
"""Time limit for a client to receive a piece of its response, in seconds."""

_SOCKET_TIMEOUT = 209

_TRANSPORT = frozenset(
    {
        "query",
        "database",
        "default_format",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "user",
        "password",
        "quota_key",
        "role",
        "compress",
        "decompress",
        "buffer_size",
        "wait_end_of_query",
        "stacktrace",
        "close_session",
        "client_protocol_version",
        "enable_http_compression",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "cancel_http_readonly_queries_on_client_close",
    }
)
"""Parameters of the URL that concern the connection, and are not settings of the statement."""

_QUERY_ID = re.compile(r"[!-~]{0,200}\Z")
_READONLY = (
    "Code: 164. DB::Exception: Cannot execute query in readonly mode: the account 'writer' changes tables, by POST. "
    "(READONLY)"
)
_NOT_FOUND = frozenset({16, 60, 81})
"""Codes of unknown columns, tables and databases."""
_DENIED = 497
_NOT_FOR_PAGES = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class _PiecewiseResponse(Response):
    """A response that is sent in pieces; if the client stops reading, the connection is closed and the rest dropped."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Returns early if the client stops reading, so that the server closes the connection."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for at in range(0, max(len(body), 1), PIECE_BYTES):
            piece, more = body[at : at + PIECE_BYTES], at + PIECE_BYTES < len(body)
            try:
                async with asyncio.timeout(PIECE_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            except TimeoutError:
                log.warning(
                    "A client received nothing of its response for %g s: %d of %d bytes were sent",
                    PIECE_SECONDS, at, len(body),
                )  # fmt: skip
                return


@dataclass(frozen=True, slots=True)
class _StatementRequest:
    """The content of a request."""

    statement: bytes
    data: bytes = b""
    database: str = "default"
    output_format: str = "TabSeparated"
    settings: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    may_write: bool = False


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        yield chunk


async def _read_body(request: Request, limit: int) -> bytes:
    body = b"".join([chunk async for chunk in _bounded(request, limit)])
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return await asyncio.to_thread(decompress, body, encoding, limit)


async def _read_form(request: Request, limit: int) -> dict[str, str]:
    """Read the fields of a multipart body, which clients send for long statements and parameters."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnknownEncoding("A multipart body cannot be compressed")
    parser = MultiPartParser(request.headers, _bounded(request, limit), max_files=0, max_part_size=limit)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise UnknownEncoding(f"The multipart body cannot be read: {error.message}") from error
    return {name: value for name, value in form.items() if isinstance(value, str)}


async def _read_request(request: Request, fields: dict[str, str], account: ClickHouseAccount) -> _StatementRequest:
    """Read a request's statement, data, parameters and settings. ``fields`` are the parameters of its URL.

    Raises ``TimeoutError`` if the whole body does not arrive within :data:`BODY_SECONDS`.
    """
    limit = MAX_BODY_BYTES if account is ClickHouseAccount.WRITER else MAX_READ_BODY_BYTES
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with asyncio.timeout(BODY_SECONDS):
            fields = fields | await _read_form(request, limit)
        body = b""
    else:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_body(request, limit)
    return _StatementRequest(
        statement=fields["query"].encode() if "query" in fields else body,
        data=body if "query" in fields else b"",
        database=fields.get("database") or request.headers.get("x-clickhouse-database") or "default",
        output_format=fields.get("default_format") or request.headers.get("x-clickhouse-format") or "TabSeparated",
        settings={
            name: value for name, value in fields.items() if name not in _TRANSPORT and not name.startswith("param_")
        },
        params={name.removeprefix("param_"): value for name, value in fields.items() if name.startswith("param_")},
        may_write=request.method == "POST" and account is ClickHouseAccount.WRITER,
    )


def _execute(engine: ChdbEngine, call: _StatementRequest) -> tuple[StatementResult, str]:
    """Run ``call``; returns the result and its format."""
    insert = split_insert(call.statement)
    if insert is not None:
        if not call.may_write:
            raise ChdbError(_READONLY)
        head = engine.parse_insert(insert.head, insert.format)
        data = insert.data + call.data
        outcome = engine.insert(head, insert.format, data, settings=call.settings, database=call.database)
        return outcome, call.output_format
    if len(call.statement) + len(call.data) > MAX_STATEMENT_BYTES:
        raise ChdbError(f"Code: 62. DB::Exception: The statement is longer than {MAX_STATEMENT_BYTES} bytes.")
    # As in ClickHouse, the query in the URL and the body form one text.
    text = call.statement.decode() + (f"\n{call.data.decode()}" if call.data else "")
    statement = engine.parse(text)
    if not (statement.allowed.reads or call.may_write):
        raise ChdbError(_READONLY)
    outcome = engine.query(
        statement,
        output_format=call.output_format,
        params=call.params,
        settings=call.settings,
        database=call.database,
        # Before they write, clients query which settings they may change; in a readonly session there would be none.
        readonly=not call.may_write,
    )
    return outcome, statement.allowed.output_format or call.output_format


def _status(code: int) -> int:
    return 400 if 0 < code < 241 else 500


class ClickHouseFront:
    """The HTTP handlers for one engine, which is opened and closed with the application."""

    def __init__(self, path: Path, secrets: Path) -> None:
        self._path = path
        self._secrets = secrets
        # Limits per account: slow bodies and long statements of one account do not delay the other account.
        self._bodies = {account: asyncio.Semaphore(BODIES[account]) for account in ClickHouseAccount}
        # Statements run in threads, because they would block the event loop; more threads than sessions would wait.
        self._threads = {
            account: ThreadPoolExecutor(SESSIONS, f"statement-{account.name}") for account in ClickHouseAccount
        }

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        self._passwords = await asyncio.to_thread(ensure_passwords, self._secrets)
        threads = self._threads[ClickHouseAccount.WRITER]
        self._engine = await loop.run_in_executor(threads, partial(ChdbEngine, self._path, sessions=SESSIONS))
        try:
            yield
        finally:
            # The engine waits for the sessions of statements that are still running in their threads.
            await asyncio.to_thread(self._engine.close)
            for threads in self._threads.values():
                threads.shutdown()

    async def ping(self, request: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def statement(self, request: Request) -> Response:
        fields = dict(parse_qsl(request.url.query, keep_blank_values=True))
        try:
            refuse_web_page(request.headers)
            if request.method == "GET" and "query" not in fields:
                # ClickHouse's answer to a GET without a query, with which load balancers check its health.
                return PlainTextResponse("Ok.\n")
            account = account_of(request.headers, fields, self._passwords, self._secrets)
        except AccessDenied as denied:
            return self._refusal(403, denied.code, str(denied))
        async with self._bodies[account]:
            return await self._answer(request, fields, account)

    async def _answer(self, request: Request, fields: dict[str, str], account: ClickHouseAccount) -> Response:
        if not _QUERY_ID.match(fields.get("query_id", "")):
            # Checked before anything runs: the response repeats it in a header.
            return self._refusal(400, 36, "query_id is up to 200 visible ASCII characters")
        try:
            call = await _read_request(request, fields, account)
        except TimeoutError:
            message = f"The request body was incomplete after {BODY_SECONDS:g} seconds: send the request again"
            response = self._refusal(408, _SOCKET_TIMEOUT, message)
            response.headers["Connection"] = "close"  # Do not wait for the rest of the body.
            return response
        except ClientDisconnect:
            return self._refusal(400, _SOCKET_TIMEOUT, "The client disconnected before its request was complete")
        except BodyTooLarge as error:
            message = f"The request body is larger than {error.limit} bytes: send smaller inserts"
            return self._refusal(413, 307, message)
        except (UnknownEncoding, UnicodeDecodeError) as error:
            return self._refusal(400, 36, str(error))
        if not call.statement.strip():
            return self._refusal(400, 62, "The request contains no query")
        loop = asyncio.get_running_loop()
        try:
            outcome, output_format = await loop.run_in_executor(self._threads[account], _execute, self._engine, call)
        except ChdbError as error:
            status = 404 if error.code in _NOT_FOUND else 403 if error.code == _DENIED else _status(error.code)
            return Response(
                f"{error}\n", status, {"X-ClickHouse-Exception-Code": str(error.code)}, media_type="text/plain"
            )
        except UnicodeDecodeError as error:
            return self._refusal(400, 36, f"The statement is not UTF-8: {error}")
        headers = {
            "X-ClickHouse-Server-Display-Name": "headrace",
            "X-ClickHouse-Query-Id": fields.get("query_id", ""),  # Visible ASCII, as checked above.
            "X-ClickHouse-Format": output_format,
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Summary": json.dumps(outcome.summary),
            **_NOT_FOR_PAGES,
        }
        return _PiecewiseResponse(outcome.body, 200, headers, media_type="application/octet-stream")

    def _refusal(self, status: int, code: int, message: str) -> Response:
        text = f"Code: {code}. DB::Exception: {message}. (version {self._engine.version})\n"
        return Response(text, status, {"X-ClickHouse-Exception-Code": str(code)}, media_type="text/plain")


def clickhouse_app(path: Path, secrets: Path) -> Starlette:
    """Returns the application that serves ClickHouse's HTTP interface with the engine on ``path``.

    ``secrets`` is the folder of the accounts' passwords, which are created there at the first start.
    """
    front = ClickHouseFront(path, secrets)
    return Starlette(
        routes=[
            Route("/ping", front.ping, methods=["GET"]),
            Route("/", front.statement, methods=["GET", "POST"]),
        ],
        # A web page cannot reach the data by DNS rebinding.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])],
        lifespan=front.lifespan,
    )


def serve_clickhouse(path: Path, *, secrets: Path, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve the engine on ``path`` until SIGTERM or SIGINT, then close it. Blocks.

    ``secrets`` is the folder of the accounts' passwords, ``reader`` and ``writer``, which are created at the first
    start. The process changes its working folder, because the engine searches unknown tables among the files there.
    Acknowledged inserts have been handed to the operating system: they survive a kill of this process. Raises
    :class:`headrace.deploy.errors.StackError` if ``host`` is not loopback, the port is taken or a password cannot be
    read.
    """
    path, secrets = path.absolute(), secrets.absolute()
    nothing = path / "no-files"
    nothing.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chdir(nothing)
    serve(clickhouse_app(path, secrets), host=host, port=port, ready=ready)
