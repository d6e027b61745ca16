"""The dashboard: pages fed by server-sent events. It knows nothing but what ClickHouse says.

GET /                      the overview; /trainer is the trainer's page, with everything below it in the same way
GET /api/snapshot?run=R    every panel as JSON
GET /api/panels/NAME?run=R one panel
GET /stream?run=R          the snapshot again whenever it changed

While the tables do not change, a refresh asks ClickHouse for their versions only: see ``changes``.
GET /api/metrics           what each metric of a step means, and from where on it is a warning
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.deploy.dashboard.changes import KeptPanel, Versions, is_current, keep, read_versions
from headrace.deploy.dashboard.pages import PAGES, Page
from headrace.deploy.dashboard.panel import Columns, Panel, default_run, read_panel
from headrace.deploy.system.http_server import serve
from headrace.schemas.redaction import redacted_address
from headrace.streams.clickhouse.database import READER, open_client
from headrace.trainer.learning.metric_registry import METRICS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

Snapshot: TypeAlias = dict[str, Any]

STATIC = Path(__file__).parent / "static"
REFRESH_S = 2.0
"""Seconds between two looks at the database, however many pages are open."""
MAX_RUNS = 16
"""Runs whose last snapshot is kept."""
MAX_STREAMS = 64
"""Pages that are fed at once."""

PAGE_PATHS = frozenset(page.path or "/" for page in PAGES)
"""Where pages stand."""

_UNKNOWN_TABLE = 60
MAX_RUN_NAME = 1000
"""Longest name of a run that is asked for, in characters."""

_HEADERS = {
    # Nothing is loaded from elsewhere, and no other page may frame this one.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class OwnPagesOnly:
    """Refuses what other sites' pages ask for, which they could not read but which costs queries and streams.

    A link from elsewhere to a page is followed. Browsers send ``Sec-Fetch-Site`` with every request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            asker, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
            page = scope["path"] in PAGE_PATHS and mode == "navigate"
            if asker not in ("none", "same-origin") and not page:
                problem = {"problem": "Requests from other sites' pages are refused: open the dashboard itself."}
                await JSONResponse(problem, 403, _HEADERS)(scope, receive, send)
                return
            if len(Request(scope).query_params.get("run", "")) > MAX_RUN_NAME:
                problem = {"problem": f"The name of a run has at most {MAX_RUN_NAME} characters."}
                await JSONResponse(problem, 400, _HEADERS)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Board:
    """Snapshots of a page's panels, shared by all who look at it: one set of queries a run and refresh."""

    def __init__(self, clickhouse_url: str, secrets: Path | None, page: Page, refresh_s: float) -> None:
        self._url = clickhouse_url
        self._secrets = secrets
        self._page = page
        self._refresh_s = refresh_s
        self._client: Client | None = None
        self._lock = asyncio.Lock()
        self._kept: OrderedDict[str, tuple[float, Snapshot]] = OrderedDict()
        self._panels: OrderedDict[str, dict[str, KeptPanel]] = OrderedDict()

    async def snapshot(self, run: str | None) -> Snapshot:
        """Every panel for ``run`` (``None``: the run that moved last), at most ``refresh_s`` old; the same object as
        before where nothing changed.

        Without a database there is a snapshot too: its ``problem`` says what is wrong and what to do.
        """
        key = "\0" if run is None else run
        async with self._lock:
            read_at, kept = self._kept.get(key, (-self._refresh_s, {}))
            if monotonic() - read_at < self._refresh_s:
                return kept
            fresh = await asyncio.to_thread(self._read_or_explain, run)
            self._kept[key] = (monotonic(), kept if _is_same(kept, fresh) else fresh)
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_RUNS:
                self._kept.popitem(last=False)
            return self._kept[key][1]

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _read_or_explain(self, run: str | None) -> Snapshot:
        try:
            return self._read(run)
        except (ClickHouseError, OSError) as error:
            where = f"ClickHouse at {redacted_address(self._url)}"
            code = error.code if isinstance(error, DatabaseError) else None
            if code == _UNKNOWN_TABLE:
                problem = "The tables are not there yet: the sink makes them when it starts (headrace up)."
            elif code is None:
                problem = f"{where} does not answer: see headrace status, or set HEADRACE_CLICKHOUSE."
            else:
                problem = f"{where} refused a query (code {code}): the dashboard's log has the error."
            log.warning("%s %s", problem, error)
            return {"run": run or "", "problem": problem, "panels": {}}

    def _read(self, run: str | None) -> Snapshot:
        if self._client is None:
            self._client = open_client(self._url, secrets=self._secrets, account=READER, timeout_s=20)
        # Before the panels: what is inserted meanwhile is read again rather than missed.
        versions = read_versions(self._client)
        listing, *others = self._page.panels
        runs = self._panel(listing, "", versions)
        chosen = default_run(runs) if run is None or (self._page.one_run and not run) else run
        panels = {panel.name: self._panel(panel, chosen, versions) for panel in others}
        return {"run": chosen, "problem": None, "panels": {listing.name: runs, **panels}}

    def _panel(self, panel: Panel, run: str, versions: Versions) -> Columns:
        """The columns of ``panel`` for ``run``, read again only where they may have changed."""
        assert self._client is not None
        kept = self._panels.setdefault(run, {})
        self._panels.move_to_end(run)
        if len(self._panels) > MAX_RUNS:
            self._panels.popitem(last=False)
        before = kept.get(panel.name)
        if before is not None and is_current(panel, before, versions, monotonic()):
            return before.columns
        columns = read_panel(self._client, panel, run)
        kept[panel.name] = keep(panel, columns, versions, monotonic(), before)
        return kept[panel.name].columns


def _is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots show the same panels: equal columns are one object, so nothing large is compared."""
    if not one or (one["run"], one["problem"]) != (other["run"], other["problem"]):
        return False
    panels, others = one["panels"], other["panels"]
    return panels.keys() == others.keys() and all(columns is others[name] for name, columns in panels.items())


class PageHandlers:
    """The HTTP handlers of a page."""

    def __init__(self, page: Page, board: Board, refresh_s: float) -> None:
        self._page = page
        self._board = board
        self._refresh_s = refresh_s
        self._streams = 0

    def routes(self) -> list[Route]:
        """Where they answer."""
        return [
            Route(self._page.path or "/", self.page),
            Route(f"{self._page.path}/api/snapshot", self.snapshot),
            Route(f"{self._page.path}/api/panels/{{name}}", self.panel),
            Route(f"{self._page.path}/stream", self.stream),
        ]

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / self._page.file, headers=_HEADERS)

    async def snapshot(self, request: Request) -> Response:
        snapshot = await self._board.snapshot(request.query_params.get("run"))
        return JSONResponse(snapshot, 503 if snapshot["problem"] else 200, _HEADERS)

    async def panel(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in {panel.name for panel in self._page.panels}:
            names = ", ".join(panel.name for panel in self._page.panels)
            return JSONResponse({"problem": f"there is no panel {name!r}: the panels are {names}"}, 404, _HEADERS)
        snapshot = await self._board.snapshot(request.query_params.get("run"))
        if snapshot["problem"]:
            return JSONResponse({"problem": snapshot["problem"]}, 503, _HEADERS)
        return JSONResponse(snapshot["panels"][name], headers=_HEADERS)

    async def stream(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return JSONResponse({"problem": f"{MAX_STREAMS} pages are open already: close one"}, 503, _HEADERS)
        changes = self._changes(request.query_params.get("run"))
        return StreamingResponse(changes, media_type="text/event-stream", headers=_HEADERS)

    async def _changes(self, run: str | None) -> AsyncIterator[str]:
        self._streams += 1
        sent: Snapshot | None = None
        try:
            while True:
                snapshot = await self._board.snapshot(run)
                # Sent all the same: it keeps the connection alive and tells the page that nothing changed.
                text = "event: same\ndata: same" if snapshot is sent else f"data: {_json(snapshot)}"
                yield f"{text}\n\n"
                sent = snapshot
                await asyncio.sleep(self._refresh_s)
        finally:
            self._streams -= 1


def _json(snapshot: Snapshot) -> str:
    return json.dumps(snapshot, separators=(",", ":"))


async def health(request: Request) -> Response:
    """That the process serves."""
    return Response("ok\n", media_type="text/plain")


async def metrics(request: Request) -> Response:
    """The registry of the trainer's metrics, by name."""
    about = {name: asdict(metric) | {"threshold": metric.threshold} for name, metric in METRICS.items()}
    return JSONResponse(about, headers=_HEADERS)


def dashboard_app(clickhouse_url: str, *, secrets: Path | None = None, refresh_s: float = REFRESH_S) -> Starlette:
    """The dashboard of the ClickHouse at ``clickhouse_url``; ``secrets`` as :func:`open_client` takes it."""
    boards = [Board(clickhouse_url, secrets, page, refresh_s) for page in PAGES]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for board in boards:
            board.close()

    pages = [PageHandlers(page, board, refresh_s) for page, board in zip(PAGES, boards, strict=True)]
    return Starlette(
        routes=[
            *(route for page in pages for route in page.routes()),
            Route("/healthz", health),
            Route("/api/metrics", metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            # No page reaches the figures by rebinding a name of its own to loopback.
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"]),
            Middleware(OwnPagesOnly),
        ],
        lifespan=lifespan,
    )


def serve_dashboard(
    clickhouse_url: str, *, secrets: Path | None = None, host: str, port: int, ready: Callable[[], None]
) -> None:
    """Serve the dashboard until SIGTERM or SIGINT. Blocks.

    ``ready`` is called once the page can be opened; ClickHouse may come later. Raises
    :class:`headrace.deploy.errors.StackError` where ``host`` is not loopback or the port is taken.
    """
    serve(dashboard_app(clickhouse_url, secrets=secrets), host=host, port=port, ready=ready, graceful_s=1)
