"""Decides which panels must be queried again, from the parts of the tables that they read.

ClickHouse stores a table in immutable parts: every insert, merge or mutation creates parts with new names, so if the
names are unchanged, so are the rows. A query for the names takes a millisecond or two, the panels of 100,000
trajectories several hundred.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.deploy.dashboard.panel import Columns, Panel
from headrace.streams.clickhouse.tables import TABLES
from headrace.streams.clickhouse.views import VIEWS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

Versions: TypeAlias = Mapping[str, int]
"""Table → a number that changes with the table's rows. Tables whose version is unknown are missing."""

WINDOW_STEPS = 12
"""Into how many steps a panel's time window is divided: while its tables do not change, rows only leave the window, and
are shown for a step longer at most. The last minute is queried again each five seconds, and not at each refresh."""
MAX_AGE_S = 300.0
"""Seconds after which a panel is queried again even if its tables seem unchanged."""

REST = 80
"""How many times as long as its query took a panel of changing tables is not queried again."""
MAX_REST_S = 15.0
"""Longest such time, in seconds."""
NORMAL_REFRESH_S = 2.0
"""Interval of refreshes at which ``REST`` holds; at shorter ones, as in tests, panels rest for less."""

# The rows of other engines, such as Distributed, are not in system.parts.
_VERSIONS = """
    SELECT table, sum(part) FROM (
        SELECT name AS table, cityHash64(uuid) AS part FROM system.tables
        WHERE database = currentDatabase() AND engine LIKE '%MergeTree'
        UNION ALL
        SELECT table, cityHash64(name, modification_time) FROM system.parts
        WHERE database = currentDatabase() AND active
    ) GROUP BY table
"""

_TABLE_NAMES = frozenset(table.name for table in TABLES)
_VIEW_SQL = {view.name: view.sql for view in VIEWS}


@cache
def tables_of(sql: str) -> frozenset[str]:
    """Returns the names of all tables that ``sql`` may read, directly or by views; possibly more than it does read."""
    words = set(re.findall(r"\w+", sql))
    under_views = (tables_of(_VIEW_SQL[view]) for view in words & _VIEW_SQL.keys())
    return frozenset(words & _TABLE_NAMES).union(*under_views)


def read_versions(client: "Client") -> Versions:
    """Returns the current versions; none if this user may not query them. Raises the client's connection errors."""
    try:
        found = client.query(_VERSIONS).result_rows
    except DatabaseError as error:
        if error.code is None:
            raise
        log.debug("every refresh queries every panel, because the parts of tables cannot be listed: %s", error)
        return {}
    return {str(table): int(version) for table, version in found}


@dataclass(frozen=True, slots=True)
class CachedPanel:
    """The cached result of a panel."""

    columns: Columns
    """The result."""
    versions: Versions
    """The versions of its tables just before the query, as far as they were known."""
    read_at: float
    """Time of the query, in seconds of a monotonic clock."""
    changed_at: float
    """Time at which the tables were first seen at these versions, on the same clock."""
    took_s: float = 0.0
    """Seconds that the query took."""


def is_current(panel: Panel, kept: CachedPanel, versions: Versions, now: float) -> bool:
    """Whether a query of ``panel`` at the time ``now`` would have the result ``kept``, but for rows that have left its
    time window since the last step."""
    return (
        now - kept.read_at < MAX_AGE_S
        # Rows leave the panel's time window until none is left.
        and (now - kept.changed_at >= panel.window_s or now - kept.read_at < panel.window_s / WINDOW_STEPS)
        and all(table in versions and kept.versions.get(table) == versions[table] for table in tables_of(panel.sql))
    )


def is_resting(kept: CachedPanel, now: float, refresh_s: float) -> bool:
    """Whether the panel should not be queried yet although its tables changed, as those of a live run always do: its
    queries take at most 1 / ``REST`` of the time, and it is never older than ``MAX_REST_S``. A fast panel never rests.
    """
    return now - kept.read_at < min(kept.took_s * REST * refresh_s / NORMAL_REFRESH_S, MAX_REST_S)


def cache_panel(
    panel: Panel,
    columns: Columns,
    versions: Versions,
    now: float,
    before: CachedPanel | None,
    took_s: float = 0.0,
) -> CachedPanel:
    """Returns the cache entry for ``columns``, which were just read; if they equal those of ``before``, shares them."""
    known = {table: versions[table] for table in tables_of(panel.sql) if table in versions}
    if before is None:
        return CachedPanel(columns, known, now, now, took_s)
    changed_at = before.changed_at if known == before.versions else now
    return CachedPanel(before.columns if columns == before.columns else columns, known, now, changed_at, took_s)
