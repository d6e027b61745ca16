"""Which panels must be read again: those over tables that have changed, as the parts of the tables show.

ClickHouse keeps a table as immutable parts: every insert, merge or mutation makes parts of new names, so where the
names are the same, so are the rows. Asking for the names costs a millisecond or two; the panels of 100,000
trajectories cost several hundred.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.deploy.dashboard.panel import Columns, Panel
from headrace.streams.clickhouse.tables import TABLES, VIEWS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

Versions: TypeAlias = Mapping[str, int]
"""Table → a number that changes with its rows. Tables that are not known to have one are missing."""

MAX_AGE_S = 300.0
"""Seconds after which a panel is read again though its tables seem to be the same."""

# Other engines, such as Distributed, keep their rows where system.parts does not show them.
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


def tables_of(sql: str) -> frozenset[str]:
    """Names of the tables that ``sql`` may read, those under views among them; too many rather than too few."""
    words = set(re.findall(r"\w+", sql))
    below = (tables_of(_VIEW_SQL[view]) for view in words & _VIEW_SQL.keys())
    return frozenset(words & _TABLE_NAMES).union(*below)


def read_versions(client: "Client") -> Versions:
    """The versions as of now; none where this user may not ask. Raises the client's errors where nothing answers."""
    try:
        found = client.query(_VERSIONS).result_rows
    except DatabaseError as error:
        if error.code is None:
            raise
        log.debug("every panel is read at every refresh, as the parts of tables cannot be listed: %s", error)
        return {}
    # Parts of other engines' tables have no entry of the table beside them, and then no number that could be trusted.
    return {str(table): int(version) for table, version in found}


@dataclass(frozen=True, slots=True)
class KeptPanel:
    """A panel as it was read."""

    columns: Columns
    """What it showed."""
    versions: Versions
    """Versions of its tables just before; one that is missing was not known."""
    read_at: float
    """When it was read, in seconds of a monotonic clock."""
    changed_at: float
    """When its tables were first seen at these versions, by the same clock."""


def is_current(panel: Panel, kept: KeptPanel, versions: Versions, now: float) -> bool:
    """Whether ``kept`` is what reading ``panel`` again would give, at the time ``now``."""
    return (
        now - kept.read_at < MAX_AGE_S
        # Rows leave what it shows of the last minutes, until none is left.
        and not now - kept.changed_at < panel.window_s
        and all(table in versions and kept.versions.get(table) == versions[table] for table in tables_of(panel.sql))
    )


def keep(panel: Panel, columns: Columns, versions: Versions, now: float, before: KeptPanel | None) -> KeptPanel:
    """``panel`` as it was read just now; ``before``: as it was read the time before. Equal columns stay one object."""
    seen = {table: versions[table] for table in tables_of(panel.sql) if table in versions}
    if before is None:
        return KeptPanel(columns, seen, now, now)
    changed_at = before.changed_at if seen == before.versions else now
    return KeptPanel(before.columns if columns == before.columns else columns, seen, now, changed_at)
