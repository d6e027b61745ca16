"""Snapshots of a page: the results of all its panels for a selection, read again only where a table changed."""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.deploy.dashboard.changes import CachedPanel, Versions, cache_panel, is_current, is_resting, read_versions
from headrace.deploy.dashboard.export import FileFormat, read_pieces
from headrace.deploy.dashboard.pages import Page
from headrace.deploy.dashboard.panel import Columns, Panel, default_run, read_panel
from headrace.deploy.dashboard.runs import KNOWN, NAMES, unknown_run
from headrace.deploy.dashboard.source import problem_of
from headrace.streams.clickhouse.database import READER, open_client

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

Snapshot: TypeAlias = dict[str, Any]

MAX_SELECTIONS = 64
"""Selections (a run with its slices) whose latest snapshot is cached: as many as pages may be open. A page whose
snapshot is not cached would cost every query at every refresh."""

TIMEOUT_S = 20
"""Seconds after which a panel's query is given up."""
FILE_TIMEOUT_S = 60
"""Seconds after which the query of a file is given up."""

_NO_CHOICE: Mapping[str, str] = MappingProxyType({})


class PageSnapshots:
    """Snapshots of a page's panels, shared by all open pages: one set of queries per selection and refresh."""

    def __init__(self, clickhouse_url: str, secrets: Path | None, page: Page, refresh_s: float) -> None:
        self._url = clickhouse_url
        self._secrets = secrets
        self._page = page
        self._refresh_s = refresh_s
        self._client: Client | None = None
        self._lock = asyncio.Lock()
        self._file_lock = asyncio.Lock()
        self._kept: OrderedDict[str, tuple[float, Snapshot]] = OrderedDict()
        self._panels: OrderedDict[str, dict[str, CachedPanel]] = OrderedDict()

    async def snapshot(self, run: str | None, chosen: Mapping[str, str] = _NO_CHOICE) -> Snapshot:
        """Returns all panels for ``run`` (``None``: the most recently active run) and the other parameters ``chosen``,
        at most ``refresh_s`` old; the same object as before if nothing has changed.

        Without a database, or for a run that does not exist, the snapshot's ``problem`` names the error and the remedy,
        and ``status`` is that of a response.
        """
        key = _key({"run": "\0" if run is None else run, **chosen})
        async with self._lock:
            read_at, kept = self._kept.get(key, (-self._refresh_s, {}))
            if monotonic() - read_at < self._refresh_s:
                return kept
            fresh = await asyncio.to_thread(self._read_or_explain, run, chosen)
            self._kept[key] = (monotonic(), kept if _is_same(kept, fresh) else fresh)
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_SELECTIONS:
                self._kept.popitem(last=False)
            return self._kept[key][1]

    async def file_of(
        self, panel: Panel, run: str, chosen: Mapping[str, str], file_format: FileFormat
    ) -> AsyncGenerator[bytes, None]:
        """Returns the result of ``panel`` as the pieces of a file, one file at a time. Raises the client's
        ``ClickHouseError`` or ``OSError``, usually before the first piece.
        """
        async with self._file_lock:
            # A connection of its own: the pages are updated while a large file is read.
            client = await asyncio.to_thread(self._open, FILE_TIMEOUT_S)
            try:
                content = read_pieces(client, panel, {"run": run, **chosen}, file_format)
                while piece := await asyncio.to_thread(next, content, b""):
                    yield piece
            finally:
                client.close()

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def explain(self, error: Exception) -> str:
        """Returns what ``error`` of a query means and what to do."""
        problem = problem_of(self._url, error)
        log.warning("%s %s", problem, error)
        return problem

    def _read_or_explain(self, run: str | None, chosen: Mapping[str, str]) -> Snapshot:
        try:
            return self._read(run, chosen)
        except (ClickHouseError, OSError) as error:
            return {"run": run or "", "problem": self.explain(error), "status": 503, "panels": {}}

    def _read(self, run: str | None, chosen: Mapping[str, str]) -> Snapshot:
        if self._client is None:
            self._client = self._open(TIMEOUT_S)
        # Queried before the panels: rows that are inserted meanwhile are read twice instead of missed.
        versions = read_versions(self._client)
        listing, *others = self._page.panels
        runs = self._panel(listing, _NO_CHOICE, versions)
        shown = default_run(runs) if run is None or (self._page.one_run and not run) else run
        named = {each.name for each in self._page.parameters if each.names_run}
        for name in (shown, *(value for parameter, value in chosen.items() if parameter in named)):
            if name and name not in runs["run"] and not self._panel(KNOWN, {"run": name}, versions)["known"][0]:
                names = self._panel(NAMES, _NO_CHOICE, versions)["run"]
                problem = unknown_run(name, names)
                return {"run": shown, "problem": problem, "status": 404, "panels": {listing.name: runs}}
        parameters = {"run": shown, **chosen}
        panels = {panel.name: self._panel(panel, parameters, versions) for panel in others if not panel.source}
        return {"run": shown, "problem": None, "status": 200, "panels": {listing.name: runs, **panels}}

    def _panel(self, panel: Panel, parameters: Mapping[str, str], versions: Versions) -> Columns:
        """Returns the columns of ``panel``; queries them only if they may have changed."""
        assert self._client is not None
        key = _key(parameters)
        kept = self._panels.setdefault(key, {})
        self._panels.move_to_end(key)
        if len(self._panels) > MAX_SELECTIONS:
            self._panels.popitem(last=False)
        before = kept.get(panel.name)
        began = monotonic()
        if before is not None and (
            is_current(panel, before, versions, began) or is_resting(before, began, self._refresh_s)
        ):
            return before.columns
        columns = read_panel(self._client, panel, parameters)
        now = monotonic()
        kept[panel.name] = cache_panel(panel, columns, versions, now, before, now - began)
        return kept[panel.name].columns

    def _open(self, timeout_s: int) -> "Client":
        return open_client(self._url, secrets=self._secrets, account=READER, timeout_s=timeout_s)


def _key(parameters: Mapping[str, str]) -> str:
    return json.dumps(sorted((name, value) for name, value in parameters.items() if value))


def _is_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots are equal. Equal columns are the same object, so only identities are compared."""
    if not one or (one["run"], one["problem"]) != (other["run"], other["problem"]):
        return False
    panels, others = one["panels"], other["panels"]
    return panels.keys() == others.keys() and all(columns is others[name] for name, columns in panels.items())
