"""Statements that create and change the tables of :mod:`tables`, and their documentation. Pure.

create_statement(EVENTS)             → CREATE TABLE IF NOT EXISTS events ( … ) ENGINE = ReplacingMergeTree …
create_statement(EVENTS, "analysis") → CREATE TABLE IF NOT EXISTS events ON CLUSTER `analysis` ( … )
                                       ENGINE = ReplicatedReplacingMergeTree …
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.streams.clickhouse.columns import Column, Index, Table, View

DEDUPLICATION_WINDOW = 10_000
"""Number of inserts whose tokens a table remembers: most of an hour at a few per second; a restart takes seconds."""
DEDUPLICATION_DAYS = 7
"""Days for which a replicated table remembers them at most."""
COMPACT_UP_TO_BYTES = 48 * 1024 * 1024
"""Size up to which all columns of a part are in one file, in bytes before compression. ClickHouse's default of 10 MiB
gives each insert of a second, and each of its merges, two files per column: creating and deleting those thousands of
files took a quarter of ClickHouse's processor time on ext4."""
WEEKLY_UP_TO_DAYS = 62
"""Retention up to which a table is partitioned by week, as Kafka rolls its segments, and otherwise by month. A
partition expires as a whole, so rows stay for up to one partition longer than their records."""


@dataclass(frozen=True, slots=True)
class PresentTable:
    """A table as it is in a database."""

    types: Mapping[str, str]
    """Type by column."""
    partition_key: str = ""
    """Partition key; empty without one."""
    expiry: str = ""
    """Expression of its TTL; empty without one."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Expression by column that ClickHouse computes from others."""
    compact_up_to_bytes: int | None = None
    """Size up to which all columns of a part are in one file, in bytes; ``None`` if the table does not set it."""
    indexes: frozenset[str] = frozenset()
    """Names of its indexes."""


def create_statement(table: Table, cluster: str = "", name: str = "") -> str:
    """Returns the DDL of ``table``, which does nothing if the table exists. ``cluster``: name of the ClickHouse cluster
    on which it is replicated; ``name``: another name for the table.
    """
    columns = ",\n".join(f"    {_column_clause(column)}" for column in table.columns)
    columns += "".join(f",\n    INDEX {_index_clause(index)}" for index in table.all_indexes)
    partition = f"\nPARTITION BY {partition_key(table)}" if table.clock else ""
    newest = f"(`{table.newest_by}`)" if table.newest_by else ""
    settings = {"non_replicated_deduplication_window": DEDUPLICATION_WINDOW}
    if cluster:
        settings = {
            "replicated_deduplication_window": DEDUPLICATION_WINDOW,
            "replicated_deduplication_window_seconds": DEDUPLICATION_DAYS * 24 * 3600,
        }
    settings["min_bytes_for_wide_part"] = COMPACT_UP_TO_BYTES
    expiry = expiry_of(table)
    if expiry:
        settings["ttl_only_drop_parts"] = 1
    return (
        f"CREATE TABLE IF NOT EXISTS {name or table.name}{on_cluster(cluster)}\n(\n{columns}\n)\n"
        f"ENGINE = {'Replicated' if cluster else ''}ReplacingMergeTree{newest}{partition}\n"
        f"ORDER BY ({', '.join(f'`{column}`' for column in table.key)})"
        + (f"\nTTL {expiry}" if expiry else "")
        + f"\nSETTINGS {', '.join(f'{key} = {value}' for key, value in settings.items())}\n"
        f"COMMENT {_literal(table.about)}"
    )


def partition_key(table: Table) -> str:
    """Returns the partition key of ``table``, as ``system.tables`` shows it; empty for a table without a clock."""
    if not table.clock:
        return ""
    days = table.keep_days
    return f"{'toMonday' if days and days <= WEEKLY_UP_TO_DAYS else 'toYYYYMM'}({table.clock})"


def expiry_of(table: Table) -> str:
    """Returns the TTL of ``table``, as ClickHouse shows it; empty if its rows are kept forever."""
    return f"toDateTime({table.clock}) + toIntervalDay({table.keep_days})" if table.clock and table.keep_days else ""


def expiry_in(create_query: str) -> str:
    """Returns the TTL in the DDL of a table, from ``system.tables``; empty without one."""
    found = re.search(r"\bTTL (.*?) SETTINGS ", create_query, re.S)
    return found[1] if found else ""


def compact_up_to_in(create_query: str) -> int | None:
    """Returns the size up to which all columns of a part are in one file, in bytes, from the DDL of a table in
    ``system.tables``; ``None`` if the table does not set it.
    """
    found = re.search(r"\bmin_bytes_for_wide_part = (\d+)", create_query)
    return int(found[1]) if found else None


def view_statement(view: View, cluster: str = "") -> str:
    """Returns the DDL of ``view``, which replaces that of an older release."""
    return f"CREATE OR REPLACE VIEW {view.name}{on_cluster(cluster)} AS\n{view.sql}\nCOMMENT {_literal(view.about)}"


def change_statements(table: Table, present: PresentTable, cluster: str = "") -> list[str]:
    """Returns the DDL that makes a table like ``present`` one like ``table`` in place: renames columns of older
    releases, adds columns and indexes, and sets the retention, how columns are computed and the size of compact parts,
    unless somebody has set that already. Empty if nothing differs that can be changed in place.
    """
    alter = f"ALTER TABLE {table.name}{on_cluster(cluster)}"
    names = set(present.types)
    made = []
    for column in table.columns:
        if column.was in names and column.name not in names:
            made.append(f"{alter} RENAME COLUMN `{column.was}` TO `{column.name}`")
        elif column.name not in names:
            made.append(f"{alter} ADD COLUMN IF NOT EXISTS {_column_clause(column)}")
        elif column.computed and present.computed.get(column.name) != column.computed:
            made.append(f"{alter} MODIFY COLUMN `{column.name}` DEFAULT {column.computed}")
    if present.expiry != expiry_of(table):
        made.append(f"{alter} MODIFY TTL {expiry_of(table)}" if expiry_of(table) else f"{alter} REMOVE TTL")
    if present.compact_up_to_bytes is None:
        made.append(f"{alter} MODIFY SETTING min_bytes_for_wide_part = {COMPACT_UP_TO_BYTES}")
    for index in table.all_indexes:
        if index.name not in present.indexes:
            made.append(f"{alter} ADD INDEX IF NOT EXISTS {_index_clause(index)}")
            # Of the rows that are there, in the background.
            made.append(f"{alter} MATERIALIZE INDEX IF EXISTS {index.name}")
    return made


def incompatibilities(table: Table, present: PresentTable) -> list[str]:
    """Returns why a table like ``present`` cannot be made one like ``table`` in place, as phrases: columns of other
    types, columns that older rows cannot have, and another partition key.
    """
    found = []
    for column in table.columns:
        type_ = present.types.get(column.name, present.types.get(column.was, column.type.clickhouse))
        if type_ != column.type.clickhouse:
            found.append(f"its column {column.name} is {type_}, and headrace needs {column.type.clickhouse}")
    if table.clock and table.clock not in present.types:
        found.append(f"it has no column {table.clock}, by which rows expire")
    elif present.partition_key != partition_key(table):
        found.append(f"it is partitioned by {present.partition_key or 'nothing'} instead of {partition_key(table)}")
    return found


def markdown(tables: Iterable[Table], views: Iterable[View] = ()) -> str:
    """Returns the documentation of ``tables`` and ``views``: heading, description, and columns or query of each."""
    parts = []
    for table in tables:
        kept = f"{table.keep_days} days" if table.keep_days else "forever"
        lines = [
            f"### `{table.name}`",
            "",
            f"{table.about} Sorted by {', '.join(f'`{name}`' for name in table.key)}; kept {kept}.",
        ]
        lines += ["", "| column | type | what |", "|---|---|---|"]
        lines += [f"| `{column.name}` | `{column.type.clickhouse}` | {column.about} |" for column in table.stored]
        parts.append("\n".join(lines))
    parts += [f"### `{view.name}`\n\nA view. {view.about}\n\n```sql\n{view.sql}\n```" for view in views]
    return "\n\n".join(parts) + "\n"


def _column_clause(column: Column) -> str:
    default = " EPHEMERAL" if column.only_inserted else f" DEFAULT {column.computed}" if column.computed else ""
    codec = f" CODEC({column.type.codec})" if column.type.codec and not column.only_inserted else ""
    return f"`{column.name}` {column.type.clickhouse}{default} COMMENT {_literal(column.about)}{codec}"


def _index_clause(index: Index) -> str:
    return f"{index.name} `{index.column}` TYPE {index.kind} GRANULARITY 1"


def on_cluster(cluster: str) -> str:
    """Returns the clause that runs a statement on every server of ``cluster``; empty without one."""
    return f" ON CLUSTER `{cluster}`" if cluster else ""


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
