"""The dashboard: pages that are updated by server-sent events. ClickHouse is its only data source.

GET /                      the overview; /trainer, /compare and /explore are pages with the same routes below them
GET /api/snapshot?run=R    all panels as JSON
GET /api/panels            the specifications of the panels, with their SQL
GET /api/panels/NAME?run=R one panel; with format=csv or format=parquet as a file
GET /stream?run=R          the snapshot, and then the panels that have changed; every second a pulse
GET /api/pulse/stream      the pulse alone, for pages about single records: see ``pulse``
GET /api/guide             the guide of the first run: see ``guide``
GET /shared/TOKEN/…        one run, read-only: see ``sharing``
GET /api/metrics           meaning and warning threshold of each metric of a step
GET /trajectory/ID …       pages about single records: see ``record_pages``
POST /api/watch/acknowledge  see ``acknowledging``

The parameters of a page are in its URL (``selection``); its routes take the same.

While the tables do not change, a refresh only queries their versions: see ``changes``.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from clickhouse_connect.driver.exceptions import ClickHouseError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.deploy.dashboard.acknowledging import Acknowledging
from headrace.deploy.dashboard.changes import NORMAL_REFRESH_S
from headrace.deploy.dashboard.decoders import Decoders
from headrace.deploy.dashboard.export import MEDIA_TYPES, FileFormat
from headrace.deploy.dashboard.feed import waiting
from headrace.deploy.dashboard.file_response import FileResponse
from headrace.deploy.dashboard.guide import Way, ways
from headrace.deploy.dashboard.open_streams import OpenStreams
from headrace.deploy.dashboard.page_html import STATIC, page_html
from headrace.deploy.dashboard.pages import PAGES, Page
from headrace.deploy.dashboard.panel import specification
from headrace.deploy.dashboard.pulse import Pulse
from headrace.deploy.dashboard.record_pages import RECORD_PAGES, RecordPages
from headrace.deploy.dashboard.responses import HEADERS as _HEADERS
from headrace.deploy.dashboard.selection import MAX_ROWS, MAX_TEXT, SelectionError, selection
from headrace.deploy.dashboard.sharing import SharedRuns
from headrace.deploy.dashboard.snapshots import PageSnapshots, Snapshot
from headrace.deploy.dashboard.source import Source
from headrace.deploy.system.http_server import serve
from headrace.trainer.learning.metric_registry import METRICS

REFRESH_S = NORMAL_REFRESH_S
"""Interval at which the database is queried, in seconds, however many pages are open."""
MAX_STREAMS = 64
"""Most pages that may be open at the same time."""

PAGE_PATHS = frozenset(page.path or "/" for page in PAGES)
"""Paths of the pages."""


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
            path: str = scope["path"]
            page = (path in PAGE_PATHS or path.startswith(RECORD_PAGES)) and mode == "navigate"
            if site not in ("none", "same-origin") and not page:
                problem = {"problem": "Requests from other sites' pages are refused: open the dashboard directly."}
                await JSONResponse(problem, 403, _HEADERS)(scope, receive, send)
                return
            if len(Request(scope).query_params.get("run", "")) > MAX_TEXT:
                problem = {"problem": f"A run's name may have at most {MAX_TEXT} characters."}
                await JSONResponse(problem, 400, _HEADERS)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class PageHandlers:
    """The HTTP handlers of a page."""

    def __init__(self, page: Page, snapshots: PageSnapshots, pulse: Pulse, refresh_s: float) -> None:
        self._page = page
        self._snapshots = snapshots
        self._pulse = pulse
        self._refresh_s = refresh_s
        self._streams = OpenStreams(MAX_STREAMS)

    def routes(self) -> list[Route]:
        """Returns the page's routes."""
        return [
            Route(self._page.path or "/", self.page),
            Route(f"{self._page.path}/api/snapshot", self.snapshot),
            Route(f"{self._page.path}/api/panels", self.specifications),
            Route(f"{self._page.path}/api/panels/{{name}}", self.panel),
            Route(f"{self._page.path}/stream", self.stream),
        ]

    async def page(self, request: Request) -> Response:
        return HTMLResponse(page_html(self._page.file, self._page.path or "/"), headers=_HEADERS)

    async def specifications(self, request: Request) -> Response:
        return JSONResponse([specification(panel) for panel in self._page.panels], headers=_HEADERS)

    async def snapshot(self, request: Request) -> Response:
        try:
            run, chosen = self._selected(request)
        except SelectionError as error:
            return _problem(str(error), 400)
        snapshot = await self._snapshots.snapshot(run, chosen)
        return JSONResponse(snapshot, snapshot["status"], _HEADERS)

    async def panel(self, request: Request) -> Response:
        name = request.path_params["name"]
        panel = next((each for each in self._page.panels if each.name == name), None)
        if panel is None:
            names = ", ".join(panel.name for panel in self._page.panels)
            return _problem(f"There is no panel {name!r}: the panels are {names}", 404)
        wanted = request.query_params.get("format", "json")
        if wanted not in ("json", *FileFormat):
            return _problem(f"format is {wanted!r}, but must be json, {' or '.join(FileFormat)}.", 400)
        try:
            run, chosen = self._selected(request)
        except SelectionError as error:
            return _problem(str(error), 400)
        snapshot = await self._snapshots.snapshot(run, chosen)
        if snapshot["problem"]:
            return _problem(snapshot["problem"], snapshot["status"])
        if wanted == "json":
            columns = snapshot["panels"][panel.source or name]
            shown = {axis.column for axis in (panel.x, *panel.values) if axis} if panel.source else columns.keys()
            return JSONResponse({each: columns[each] for each in columns if each in shown}, headers=_HEADERS)
        file_format = FileFormat(wanted)
        whole = chosen | ({"limit": str(MAX_ROWS)} if "limit" in chosen else {})
        content = self._snapshots.file_of(panel, snapshot["run"], whole, file_format)
        try:
            first = await anext(content)
        except (ClickHouseError, OSError) as error:
            return _problem(self._snapshots.explain(error), 503)
        attached = {"Content-Disposition": f'attachment; filename="{name}.{file_format}"'}
        return FileResponse(first, content, MEDIA_TYPES[file_format], _HEADERS | attached)

    async def stream(self, request: Request) -> Response:
        if self._streams.are_full:
            return _problem(f"{MAX_STREAMS} pages are already open: close one", 503)
        try:
            run, chosen = self._selected(request)
        except SelectionError as error:
            return _problem(str(error), 400)
        return StreamingResponse(self._changes(run, chosen), media_type="text/event-stream", headers=_HEADERS)

    def _selected(self, request: Request) -> tuple[str | None, dict[str, str]]:
        """Returns the run of a request, ``None`` if it has none, and the page's other parameters."""
        chosen = selection(self._page.parameters, request.query_params)
        chosen.pop("run", None)
        return request.query_params.get("run"), chosen

    async def _changes(self, run: str | None, chosen: Mapping[str, str]) -> AsyncIterator[str]:
        sent: Snapshot | None = None
        with self._streams.one(), self._pulse.listening():
            while True:
                reading = asyncio.ensure_future(self._snapshots.snapshot(run, chosen))
                async for event in waiting(reading, self._pulse.event):
                    yield event
                snapshot = reading.result()
                # An event is sent even without a change: it keeps the connection alive and the page up to date.
                text = (
                    "event: same\ndata: same" if snapshot is sent else f"data: {_json(changes_since(sent, snapshot))}"
                )
                yield f"{text}\n\n"
                sent = snapshot
                async for pulse in self._pulse.told(self._refresh_s):
                    yield pulse


class PulseHandler:
    """The stream of pulses for pages that have no other stream."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._streams = OpenStreams(MAX_STREAMS)

    async def stream(self, request: Request) -> Response:
        """Answer with a pulse every second."""
        if self._streams.are_full:
            return _problem(f"{MAX_STREAMS} pages are already open: close one", 503)
        return StreamingResponse(self._pulses(), media_type="text/event-stream", headers=_HEADERS)

    async def _pulses(self) -> AsyncIterator[str]:
        with self._streams.one(), self._pulse.listening():
            async for pulse in self._pulse.told():
                yield pulse


def changes_since(sent: Snapshot | None, snapshot: Snapshot) -> Snapshot:
    """Returns ``snapshot`` without the panels that are as in ``sent``; whole after another run or a problem."""
    if sent is None or sent["run"] != snapshot["run"] or sent["problem"] or snapshot["problem"]:
        return snapshot
    changed = {name: each for name, each in snapshot["panels"].items() if each is not sent["panels"].get(name)}
    return {**snapshot, "panels": changed, "partial": True}


def _problem(text: str, status: int) -> Response:
    return JSONResponse({"problem": text}, status, _HEADERS)


def _json(snapshot: Snapshot) -> str:
    return json.dumps(snapshot, separators=(",", ":"))


async def health(request: Request) -> Response:
    """Answer a health check."""
    return Response("ok\n", media_type="text/plain")


async def metrics(request: Request) -> Response:
    """Answer with the registry of the trainer's metrics, by name."""
    about = {name: asdict(metric) | {"threshold": metric.threshold} for name, metric in METRICS.items()}
    return JSONResponse(about, headers=_HEADERS)


def guide_of(first_run: Sequence[Way]) -> Callable[[Request], Response]:
    """Returns a handler that answers with the guide of the first run."""
    return lambda request: JSONResponse([asdict(way) for way in first_run], headers=_HEADERS)


def dashboard_app(
    clickhouse_url: str,
    *,
    secrets: Path | None = None,
    refresh_s: float = REFRESH_S,
    kafka: str | None = None,
    objects: str | None = None,
    gateway: str | None = None,
    share_key: Path | None = None,
) -> Starlette:
    """Returns the dashboard of the ClickHouse at ``clickhouse_url``; ``secrets`` is that of :func:`open_client`.

    Alerts are acknowledged at ``kafka`` (``host:port``), and tokenizers are read from the object store ``objects`` (a
    URL); without them the pages say what is missing. While there is no data, a page shows how to send some, with the
    addresses of ``kafka`` and ``gateway`` (a URL). ``share_key``: file of the key of shared links; ``None``: nothing is
    shared.
    """
    first_run = ways(kafka, gateway)
    records = Source(clickhouse_url, secrets)
    sources = [PageSnapshots(clickhouse_url, secrets, page, refresh_s) for page in PAGES]
    pulse = Pulse(clickhouse_url, secrets)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        records.close()
        pulse.close()
        for source in sources:
            source.close()

    pages = [PageHandlers(page, source, pulse, refresh_s) for page, source in zip(PAGES, sources, strict=True)]
    return Starlette(
        routes=[
            *(route for page in pages for route in page.routes()),
            *RecordPages(records, Decoders(records, objects)).routes(),
            *Acknowledging(records, kafka).routes(),
            Route("/healthz", health),
            Route("/api/metrics", metrics),
            Route("/api/pulse/stream", PulseHandler(pulse).stream),
            Route("/api/guide", guide_of(first_run)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            # A web page cannot reach the data by DNS rebinding.
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"]),
            Middleware(SharedRuns, file=share_key),
            Middleware(SameOriginOnly),
        ],
        lifespan=lifespan,
    )


def serve_dashboard(
    clickhouse_url: str,
    *,
    secrets: Path | None = None,
    kafka: str | None = None,
    objects: str | None = None,
    gateway: str | None = None,
    share_key: Path | None = None,
    host: str,
    port: int,
    ready: Callable[[], None],
) -> None:
    """Serve the dashboard (:func:`dashboard_app`) until SIGTERM or SIGINT. Blocks.

    ``ready`` is called once the page can be opened; ClickHouse may be started later. Raises
    :class:`headrace.deploy.errors.StackError` if ``host`` is not loopback or the port is taken.
    """
    app = dashboard_app(
        clickhouse_url, secrets=secrets, kafka=kafka, objects=objects, gateway=gateway, share_key=share_key
    )
    serve(app, host=host, port=port, ready=ready, graceful_s=1)
