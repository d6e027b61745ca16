"""ClickHouse's HTTP interface over the embedded engine: any ClickHouse client works, and needs no server installed.

    curl -u "reader:$(cat .headrace/clickhouse-secrets/reader)" http://127.0.0.1:8123/ -d 'SELECT count() FROM steps'

One process owns the engine and its folder; everything else, ours or not, is an ordinary HTTP client. So the laptop's
embedded engine and a cluster's server are one code path. Answers are sent uncompressed, which every client accepts
and loopback rewards; request bodies may be gzip, deflate, lz4 or zstd.

Accounts are checked by ``access``, statements by ``statements``, against the lists in ``allowed``.
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

from headrace.deploy.clickhouse.access import ClickHouseAccount, Denied, account_of, ensure_passwords, refuse_web_page
from headrace.deploy.clickhouse.content_encoding import BodyTooLarge, UnknownEncoding, decompress
from headrace.deploy.clickhouse.engine import ChdbEngine, ChdbError, Outcome
from headrace.deploy.clickhouse.insert_statement import split_insert
from headrace.deploy.system.http_server import serve

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest request body, before and after decompression, in bytes."""

MAX_STATEMENT_BYTES = 1024 * 1024
"""Longest statement, in bytes; the data of an insert are none of it."""

SESSIONS = 4
"""Statements of one account that run side by side."""

MAX_READ_BODY_BYTES = MAX_STATEMENT_BYTES + 64 * 1024
"""Largest request body of an account that only reads, in bytes: a statement with its parameters, and never data."""

BODIES = {ClickHouseAccount.READER: 64, ClickHouseAccount.WRITER: 2 * SESSIONS}
"""Requests of each account whose bodies are held at once; others of that account wait before theirs are read."""

BODY_SECONDS = 30.0
"""Longest wait for the whole body of a request, in seconds. Clients are on this machine."""

PIECE_BYTES = 1024 * 1024
"""What of an answer is handed to the socket at once, in bytes."""

PIECE_SECONDS = 60.0
"""Longest wait for a client to take a piece of its answer, in seconds."""

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
"""Parameters of the URL that are about the connection and not settings of the statement."""

_QUERY_ID = re.compile(r"[!-~]{0,200}\Z")
_READONLY = (
    "Code: 164. DB::Exception: Cannot execute query in readonly mode: the account 'writer' changes tables, by POST. "
    "(READONLY)"
)
_NOT_FOUND = frozenset({16, 60, 81})
"""Codes of unknown columns, tables and databases."""
_DENIED = 497
_NOT_FOR_PAGES = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class _Answer(Response):
    """A result, sent in pieces: a client that stops reading is cut off, and the rest of its answer let go."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Ends without the rest, so that the server closes the connection, where the client reads no more."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for at in range(0, max(len(body), 1), PIECE_BYTES):
            piece, more = body[at : at + PIECE_BYTES], at + PIECE_BYTES < len(body)
            try:
                async with asyncio.timeout(PIECE_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            except TimeoutError:
                log.warning(
                    "A client took nothing of its answer for %g s: %d of %d bytes were sent",
                    PIECE_SECONDS, at, len(body),
                )  # fmt: skip
                return


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, taken apart."""

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
    """The fields of a multipart body, which clients send for long statements and parameters."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnknownEncoding("A multipart body cannot be compressed")
    parser = MultiPartParser(request.headers, _bounded(request, limit), max_files=0, max_part_size=limit)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise UnknownEncoding(f"The multipart body cannot be read: {error.message}") from error
    return {name: value for name, value in form.items() if isinstance(value, str)}


async def _read_call(request: Request, fields: dict[str, str], account: ClickHouseAccount) -> _Call:
    """The request as a statement, its data, parameters and settings. ``fields`` are the parameters of its URL.

    Raises ``TimeoutError`` where the body does not come whole within :data:`BODY_SECONDS`.
    """
    limit = MAX_BODY_BYTES if account is ClickHouseAccount.WRITER else MAX_READ_BODY_BYTES
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with asyncio.timeout(BODY_SECONDS):
            fields = fields | await _read_form(request, limit)
        body = b""
    else:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_body(request, limit)
    return _Call(
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


def _execute(engine: ChdbEngine, call: _Call) -> tuple[Outcome, str]:
    """Run ``call``; returns what came and its format."""
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
    # ClickHouse's rule: the query in the URL and the body are one text.
    text = call.statement.decode() + (f"\n{call.data.decode()}" if call.data else "")
    statement = engine.parse(text)
    if not (statement.ruling.reads or call.may_write):
        raise ChdbError(_READONLY)
    outcome = engine.query(
        statement,
        output_format=call.output_format,
        params=call.params,
        settings=call.settings,
        database=call.database,
        # Clients ask which settings they may send before they write, and nothing may be set in a readonly session.
        readonly=not call.may_write,
    )
    return outcome, statement.ruling.output_format or call.output_format


def _status(code: int) -> int:
    return 400 if 0 < code < 241 else 500


class ClickHouseFront:
    """The HTTP handlers over one engine, which opens with the application and closes with it."""

    def __init__(self, path: Path, secrets: Path) -> None:
        self._path = path
        self._secrets = secrets
        # One account cannot keep another waiting, neither by bodies that do not come nor by statements that run long.
        self._bodies = {account: asyncio.Semaphore(BODIES[account]) for account in ClickHouseAccount}
        # Statements must not starve the event loop, and more threads than sessions would only wait.
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
            # Statements that are still running keep their threads; the engine waits for their sessions.
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
                # What a ClickHouse server answers to a bare GET, which load balancers probe with.
                return PlainTextResponse("Ok.\n")
            account = account_of(request.headers, fields, self._passwords, self._secrets)
        except Denied as denied:
            return self._refusal(403, denied.code, str(denied))
        async with self._bodies[account]:
            return await self._answer(request, fields, account)

    async def _answer(self, request: Request, fields: dict[str, str], account: ClickHouseAccount) -> Response:
        if not _QUERY_ID.match(fields.get("query_id", "")):
            # Before anything runs: the answer repeats it in a header.
            return self._refusal(400, 36, "query_id is up to 200 visible ASCII characters")
        try:
            call = await _read_call(request, fields, account)
        except TimeoutError:
            message = f"The request body did not come whole within {BODY_SECONDS:g} seconds: send the request again"
            answer = self._refusal(408, _SOCKET_TIMEOUT, message)
            answer.headers["Connection"] = "close"  # what is left of the body is not waited for
            return answer
        except ClientDisconnect:
            return self._refusal(400, _SOCKET_TIMEOUT, "The client left before its request was whole")
        except BodyTooLarge as error:
            return self._refusal(413, 307, f"The request body is larger than {error.limit} bytes: insert less at once")
        except (UnknownEncoding, UnicodeDecodeError) as error:
            return self._refusal(400, 36, str(error))
        if not call.statement.strip():
            return self._refusal(400, 62, "There is no query")
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
            "X-ClickHouse-Query-Id": fields.get("query_id", ""),  # visible ASCII: _answer has looked
            "X-ClickHouse-Format": output_format,
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Summary": json.dumps(outcome.summary),
            **_NOT_FOR_PAGES,
        }
        return _Answer(outcome.body, 200, headers, media_type="application/octet-stream")

    def _refusal(self, status: int, code: int, message: str) -> Response:
        text = f"Code: {code}. DB::Exception: {message}. (version {self._engine.version})\n"
        return Response(text, status, {"X-ClickHouse-Exception-Code": str(code)}, media_type="text/plain")


def clickhouse_app(path: Path, secrets: Path) -> Starlette:
    """The application that answers ClickHouse's HTTP interface from the engine on ``path``.

    ``secrets`` is the folder of the accounts' passwords; they are made there at the first start.
    """
    front = ClickHouseFront(path, secrets)
    return Starlette(
        routes=[
            Route("/ping", front.ping, methods=["GET"]),
            Route("/", front.statement, methods=["GET", "POST"]),
        ],
        # No page reaches the data by rebinding a name of its own to loopback.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])],
        lifespan=front.lifespan,
    )


def serve_clickhouse(path: Path, *, secrets: Path, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve the engine on ``path`` until SIGTERM or SIGINT, then close it. Blocks.

    ``secrets`` is the folder of the accounts' passwords, ``reader`` and ``writer``, made at the first start. The
    process changes its working folder, since the engine looks for tables it does not know among the files there.
    Acknowledged inserts are on disk as far as the operating system goes: they survive a kill of this process. Raises
    :class:`headrace.deploy.errors.StackError` where ``host`` is not loopback, the port is taken or a password cannot
    be read.
    """
    path, secrets = path.absolute(), secrets.absolute()
    nothing = path / "no-files"
    nothing.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chdir(nothing)
    serve(clickhouse_app(path, secrets), host=host, port=port, ready=ready)
