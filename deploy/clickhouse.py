"""ClickHouse's HTTP interface over the embedded engine: any ClickHouse client works, and needs no server installed.

    curl 'http://127.0.0.1:8123/?query=SELECT+count()+FROM+events+FINAL'

One process owns the engine and its folder; everything else, ours or not, is an ordinary HTTP client. So the laptop's
embedded engine and a cluster's server are one code path. Answers are sent uncompressed, which every client accepts
and loopback rewards; request bodies may be gzip, deflate, lz4 or zstd.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.deploy.chdb_engine import Engine, EngineError, Outcome, is_read_only
from headrace.deploy.content_encoding import BodyTooLarge, UnknownEncoding, decompress
from headrace.deploy.serving import serve

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest request body, before and after decompression, in bytes."""

SESSIONS = 4
"""Statements that run side by side."""

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

INSERT = re.compile(
    rb"""\s*(?P<statement>INSERT\s+INTO\s+
    (?:(?:"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`|[\w.]|\s(?!\s*(?:FORMAT|SETTINGS|VALUES|SELECT|WITH)\b))+)   # table
    \s*(?:\((?:"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`|[^()"`])*\))?                                           # columns
    \s*(?:SETTINGS\s+(?:(?!\bFORMAT\b).)*?)?)
    \s*\bFORMAT\s+(?P<format>\w+)[ \t]*(?:\r?\n|;|\Z|[ ])""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""An insert whose data follow: statement, format, then the bytes."""

_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*(?:SETTINGS\s[^;]*)?;?\s*\Z", re.IGNORECASE)
_NOT_FOUND = frozenset({16, 60, 81})
"""Codes of unknown columns, tables and databases."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, taken apart."""

    statement: bytes
    data: bytes = b""
    database: str = "default"
    output_format: str = "TabSeparated"
    settings: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    may_write: bool = True


async def _read_body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge(MAX_BODY_BYTES)
        chunks.append(chunk)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return await asyncio.to_thread(decompress, b"".join(chunks), encoding, MAX_BODY_BYTES)


async def _read_call(request: Request) -> _Call:
    """The request as a statement, its data, parameters and settings."""
    fields = dict(parse_qsl(request.url.query, keep_blank_values=True))
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=0, max_part_size=MAX_BODY_BYTES) as form:
            fields |= {name: value for name, value in form.items() if isinstance(value, str)}
        body = b""
    else:
        body = await _read_body(request)
    return _Call(
        statement=fields["query"].encode() if "query" in fields else body,
        data=body if "query" in fields else b"",
        database=fields.get("database") or request.headers.get("x-clickhouse-database") or "default",
        output_format=fields.get("default_format") or request.headers.get("x-clickhouse-format") or "TabSeparated",
        settings={
            name: value for name, value in fields.items() if name not in _TRANSPORT and not name.startswith("param_")
        },
        params={name.removeprefix("param_"): value for name, value in fields.items() if name.startswith("param_")},
        may_write=request.method == "POST",
    )


def _execute(engine: Engine, call: _Call) -> tuple[Outcome, str]:
    """Run ``call``; returns what came and its format."""
    insert = INSERT.match(call.statement)
    if insert and call.may_write:
        data = call.statement[insert.end() :] + call.data
        statement, input_format = insert["statement"].decode(), insert["format"].decode()
        outcome = engine.insert(statement, input_format, data, settings=call.settings, database=call.database)
        return outcome, call.output_format
    statement = call.statement.decode()
    if call.data:
        # ClickHouse's rule: the query in the URL and the body are one text.
        statement = f"{statement}\n{call.data.decode()}"
    if not call.may_write and not is_read_only(statement):
        raise EngineError("Code: 164. DB::Exception: Cannot execute query in readonly mode: use POST. (READONLY)")
    named = _FORMAT.search(statement)
    output_format = named[1] if named else call.output_format
    outcome = engine.query(
        statement,
        output_format=output_format,
        params=call.params,
        settings=call.settings,
        database=call.database,
    )
    return outcome, output_format


class ClickHouseFront:
    """The HTTP handlers over one engine, which opens with the application and closes with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Statements must not starve the event loop, and more threads than sessions would only wait.
        self._threads = ThreadPoolExecutor(SESSIONS, "statement")

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        self._engine = await loop.run_in_executor(self._threads, partial(Engine, self._path, sessions=SESSIONS))
        try:
            yield
        finally:
            # Statements that are still running keep their threads; the engine waits for their sessions.
            await asyncio.to_thread(self._engine.close)
            self._threads.shutdown()

    async def ping(self, request: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def statement(self, request: Request) -> Response:
        if "origin" in request.headers:
            return self._refusal(403, 497, "Requests from web pages are refused: there is no access control")
        try:
            call = await _read_call(request)
        except BodyTooLarge as error:
            return self._refusal(413, 307, f"The request body is larger than {error.limit} bytes: insert less at once")
        except (UnknownEncoding, UnicodeDecodeError) as error:
            return self._refusal(400, 36, str(error))
        if not call.statement.strip():
            # What a ClickHouse server answers to a bare GET, which load balancers probe with.
            return (
                PlainTextResponse("Ok.\n") if request.method == "GET" else self._refusal(400, 62, "There is no query")
            )
        loop = asyncio.get_running_loop()
        try:
            outcome, output_format = await loop.run_in_executor(self._threads, _execute, self._engine, call)
        except EngineError as error:
            status = 404 if error.code in _NOT_FOUND else 400 if 0 < error.code < 241 else 500
            return Response(
                f"{error}\n", status, {"X-ClickHouse-Exception-Code": str(error.code)}, media_type="text/plain"
            )
        except UnicodeDecodeError as error:
            return self._refusal(400, 36, f"The statement is not UTF-8: {error}")
        headers = {
            "X-ClickHouse-Server-Display-Name": "headrace",
            "X-ClickHouse-Query-Id": request.query_params.get("query_id", ""),
            "X-ClickHouse-Format": output_format,
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Summary": json.dumps(outcome.summary),
        }
        return Response(outcome.body, 200, headers, media_type="application/octet-stream")

    def _refusal(self, status: int, code: int, message: str) -> Response:
        text = f"Code: {code}. DB::Exception: {message}. (version {self._engine.version})\n"
        return Response(text, status, {"X-ClickHouse-Exception-Code": str(code)}, media_type="text/plain")


def clickhouse_app(path: Path) -> Starlette:
    """The application that answers ClickHouse's HTTP interface from the engine on ``path``."""
    front = ClickHouseFront(path)
    return Starlette(
        routes=[
            Route("/ping", front.ping, methods=["GET"]),
            Route("/", front.statement, methods=["GET", "POST"]),
        ],
        # With the check on Origin: a web page cannot reach the data, not even by rebinding a name to loopback.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])],
        lifespan=front.lifespan,
    )


def serve_clickhouse(path: Path, *, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve the engine on ``path`` until SIGTERM or SIGINT, then close it. Blocks.

    Acknowledged inserts are on disk as far as the operating system goes: they survive a kill of this process. Raises
    :class:`headrace.deploy.errors.StackError` where ``host`` is not loopback or the port is taken.
    """
    serve(clickhouse_app(path), host=host, port=port, ready=ready)
