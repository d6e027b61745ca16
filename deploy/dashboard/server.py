"""The dashboard: pages that are updated by server-sent events. ClickHouse is its only data source.

GET /                      the overview; /trainer is the trainer's page and has the same routes below it
GET /api/snapshot?run=R    all panels as JSON
GET /api/panels/NAME?run=R one panel
GET /stream?run=R          the snapshot, sent again whenever it has changed
GET /api/metrics           meaning and warning threshold of each metric of a step

While the tables do not change, a refresh only queries their versions: see ``changes``.
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

from headrace.deploy.dashboard.changes import CachedPanel, Versions, cache_panel, is_current, read_versions
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
"""Interval at which the database is queried, in seconds, however many pages are open."""
MAX_RUNS = 16
"""Runs whose latest snapshot is cached."""
MAX_STREAMS = 64
"""Most pages that may be open at the same time."""

PAGE_PATHS = frozenset(page.path or "/" for page in PAGES)
"""Paths of the pages."""

_UNKNOWN_TABLE = 60
MAX_RUN_NAME = 1000
"""Longest run name in a request, in characters."""

_HEADERS = {
    # The page loads nothing from other sites, and other pages may not frame it.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class SameOriginOnly:
    """Refuses requests from other sites' pages: they could not read the response, but would cost queries and streams.

    Links from other sites to a page work. Browsers send ``Sec-Fetch-Site`` with every request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
            page = scope["path"] in PAGE_PATHS and mode == "navigate"
            if site not in ("none", "same-origin") and not page:
                problem = {"problem": "Requests from other sites' pages are refused: open the dashboard directly."}
                await JSONResponse(problem, 403, _HEADERS)(scope, receive, send)
                return
            if len(Request(scope).query_params.get("run", "")) > MAX_RUN_NAME:
                problem = {"problem": f"A run's name may have at most {MAX_RUN_NAME} characters."}
                await JSONResponse(problem, 400, _HEADERS)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class PageSnapshots:
    """Snapshots of a page's panels, shared by all open pages: one set of queries per run and refresh."""

    def __init__(self, clickhouse_url: str, secrets: Path | None, page: Page, refresh_s: float) -> None:
        self._url = clickhouse_url
        self._secrets = secrets
        self._page = page
        self._refresh_s = refresh_s
        self._client: Client | None = None
        self._lock = asyncio.Lock()
        self._kept: OrderedDict[str, tuple[float, Snapshot]] = OrderedDict()
        self._panels: OrderedDict[str, dict[str, CachedPanel]] = OrderedDict()

    async def snapshot(self, run: str | None) -> Snapshot:
        """Returns all panels for ``run`` (``None``: the most recently active run), at most ``refresh_s`` old; the same
        object as before if nothing has changed.

        Without a database the snapshot's ``problem`` names the error and the remedy.
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
                problem = "The tables do not exist yet: the sink creates them when it starts (headrace up)."
            elif code is None:
                problem = f"{where} does not answer: check headrace status, or set HEADRACE_CLICKHOUSE."
            else:
                problem = f"{where} refused a query (code {code}): the dashboard's log has the error."
            log.warning("%s %s", problem, error)
            return {"run": run or "", "problem": problem, "panels": {}}

    def _read(self, run: str | None) -> Snapshot:
        if self._client is None:
            self._client = open_client(self._url, secrets=self._secrets, account=READER, timeout_s=20)
        # Queried before the panels: rows that are inserted meanwhile are read twice instead of missed.
        versions = read_versions(self._client)
        listing, *others = self._page.panels
        runs = self._panel(listing, "", versions)
        chosen = default_run(runs) if run is None or (self._page.one_run and not run) else run
        panels = {panel.name: self._panel(panel, chosen, versions) for panel in others}
        return {"run": chosen, "problem": None, "panels": {listing.name: runs, **panels}}

    def _panel(self, panel: Panel, run: str, versions: Versions) -> Columns:
        """Returns the columns of ``panel`` for ``run``; queries them only if they may have changed."""
        assert self._client is not None
        kept = self._panels.setdefault(run, {})
        self._panels.move_to_end(run)
        if len(self._panels) > MAX_RUNS:
            self._panels.popitem(last=False)
        before = kept.get(panel.name)
        if before is not None and is_current(panel, before, versions, monotonic()):
            return before.columns
        columns = read_panel(self._client, panel, run)
        kept[panel.name] = cache_panel(panel, columns, versions, monotonic(), before)
        return kept[panel.name].columns


def _is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are equal. Equal columns are the same object, so only identities are compared."""
    if not one or (one["run"], one["problem"]) != (other["run"], other["problem"]):
        return False
    panels, others = one["panels"], other["panels"]
    return panels.keys() == others.keys() and all(columns is others[name] for name, columns in panels.items())


class PageHandlers:
    """The HTTP handlers of a page."""

    def __init__(self, page: Page, snapshots: PageSnapshots, refresh_s: float) -> None:
        self._page = page
        self._snapshots = snapshots
        self._refresh_s = refresh_s
        self._streams = 0

    def routes(self) -> list[Route]:
        """Returns the page's routes."""
        return [
            Route(self._page.path or "/", self.page),
            Route(f"{self._page.path}/api/snapshot", self.snapshot),
            Route(f"{self._page.path}/api/panels/{{name}}", self.panel),
            Route(f"{self._page.path}/stream", self.stream),
        ]

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / self._page.file, headers=_HEADERS)

    async def snapshot(self, request: Request) -> Response:
        snapshot = await self._snapshots.snapshot(request.query_params.get("run"))
        return JSONResponse(snapshot, 503 if snapshot["problem"] else 200, _HEADERS)

    async def panel(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in {panel.name for panel in self._page.panels}:
            names = ", ".join(panel.name for panel in self._page.panels)
            return JSONResponse({"problem": f"There is no panel {name!r}: the panels are {names}"}, 404, _HEADERS)
        snapshot = await self._snapshots.snapshot(request.query_params.get("run"))
        if snapshot["problem"]:
            return JSONResponse({"problem": snapshot["problem"]}, 503, _HEADERS)
        return JSONResponse(snapshot["panels"][name], headers=_HEADERS)

    async def stream(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return JSONResponse({"problem": f"{MAX_STREAMS} pages are already open: close one"}, 503, _HEADERS)
        changes = self._changes(request.query_params.get("run"))
        return StreamingResponse(changes, media_type="text/event-stream", headers=_HEADERS)

    async def _changes(self, run: str | None) -> AsyncIterator[str]:
        self._streams += 1
        sent: Snapshot | None = None
        try:
            while True:
                snapshot = await self._snapshots.snapshot(run)
                # An event is sent even without a change: it keeps the connection alive and the page up to date.
                text = "event: same\ndata: same" if snapshot is sent else f"data: {_json(snapshot)}"
                yield f"{text}\n\n"
                sent = snapshot
                await asyncio.sleep(self._refresh_s)
        finally:
            self._streams -= 1


def _json(snapshot: Snapshot) -> str:
    return json.dumps(snapshot, separators=(",", ":"))


async def health(request: Request) -> Response:
    """Answer a health check."""
    return Response("ok\n", media_type="text/plain")


async def metrics(request: Request) -> Response:
    """Answer with the registry of the trainer's metrics, by name."""
    about = {name: asdict(metric) | {"threshold": metric.threshold} for name, metric in METRICS.items()}
    return JSONResponse(about, headers=_HEADERS)


def dashboard_app(clickhouse_url: str, *, secrets: Path | None = None, refresh_s: float = REFRESH_S) -> Starlette:
    """Returns the dashboard of the ClickHouse at ``clickhouse_url``; ``secrets`` is that of :func:`open_client`."""
    sources = [PageSnapshots(clickhouse_url, secrets, page, refresh_s) for page in PAGES]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for source in sources:
            source.close()

    pages = [PageHandlers(page, source, refresh_s) for page, source in zip(PAGES, sources, strict=True)]
    return Starlette(
        routes=[
            *(route for page in pages for route in page.routes()),
            Route("/healthz", health),
            Route("/api/metrics", metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            # A web page cannot reach the data by DNS rebinding.
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"]),
            Middleware(SameOriginOnly),
        ],
        lifespan=lifespan,
    )


def serve_dashboard(
    clickhouse_url: str, *, secrets: Path | None = None, host: str, port: int, ready: Callable[[], None]
) -> None:
    """Serve the dashboard until SIGTERM or SIGINT. Blocks.

    ``ready`` is called once the page can be opened; ClickHouse may be started later. Raises
    :class:`headrace.deploy.errors.StackError` if ``host`` is not loopback or the port is taken.
    """
    serve(dashboard_app(clickhouse_url, secrets=secrets), host=host, port=port, ready=ready, graceful_s=1)
