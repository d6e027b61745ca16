"""Creates the tables and views in a database, changes those of older releases in place, or migrates them."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.streams.clickhouse.columns import Table, View
from headrace.streams.clickhouse.ddl import (
    PresentTable,
    change_statements,
    compact_up_to_in,
    create_statement,
    expiry_in,
    incompatibilities,
    view_statement,
)
from headrace.streams.clickhouse.migration import before_name, migration_of, new_name, outdated, rest_of_swap
from headrace.streams.clickhouse.slice_sums import recompute_stale
from headrace.streams.clickhouse.starts import add_missing_starts
from headrace.streams.clickhouse.tables import PRICES, TABLES
from headrace.streams.clickhouse.views import VIEWS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


class MigrationError(RuntimeError):
    """The copy of a table has another number of rows than the table; nothing was replaced."""


def ensure_tables(
    client: "Client", tables: tuple[Table, ...] = TABLES, views: tuple[View, ...] = VIEWS, *, cluster: str = ""
) -> None:
    """Create missing tables, columns, indexes and views, rename columns of older releases, and set the retention of
    rows to that of their topics. ``cluster``: name of the ClickHouse cluster on which tables are replicated.

    Raises :class:`OutdatedTablesError`, a ``ValueError``, for tables that only a migration can change, and changes
    nothing then.
    """
    if reasons := _reasons(client, tables):
        raise outdated(reasons)
    for table in tables:
        client.command(create_statement(table, cluster))
        for statement in change_statements(table, present_table(client, table.name), cluster):
            client.command(statement)
            log.info("an older release's table: %s", statement)

    # After all tables, because a view may use any of them.
    for view in views if tables is TABLES else ():
        client.command(view_statement(view, cluster))


def migrate_tables(client: "Client", tables: Sequence[Table] = TABLES, *, cluster: str = "") -> list[str]:
    """Copy tables of older releases, which cannot be changed in place, into tables of this release, and replace them.
    Returns a line for each. Nothing may write meanwhile: the sink of this release does not start before.

    May be interrupted and repeated: what an interrupted one left is finished first. Needs the disk space of the largest
    table once more. Raises :class:`MigrationError`, and keeps the table, if the copy has another number of rows.
    """
    done = _finish_swaps(client, tables, cluster)
    for name in _reasons(client, tables):
        table = next(each for each in tables if each.name == name)
        migration = migration_of(table, present_table(client, name), cluster)
        for statement in migration.copy:
            client.command(statement)
        before, after = (int(client.query(query).result_rows[0][0]) for query in migration.counts)
        if before != after:
            raise MigrationError(
                f"the copy of the table {name} has {after} rows instead of {before}: something wrote to it meanwhile. "
                "Stop every sink and run the command again"
            )
        for statement in migration.swap:
            client.command(statement)
        done.append(f"{name}: {after} rows")
        log.info("migrated the table %s, %d rows", name, after)
    ensure_tables(client, tuple(tables) if tables is not TABLES else TABLES, cluster=cluster)
    if tables is TABLES:
        compute_missing(client)
    return done


def compute_missing(client: "Client") -> None:
    """Compute the rows of `starts` and `slice_sums` that are missing, or older than the rows that they are computed
    from: after a crash, or if the tables are new. Raises the client's ``ClickHouseError``.
    """
    add_missing_starts(client)
    recompute_stale(client)


def set_prices(client: "Client", prices: Mapping[str, Sequence[float]], currency: str) -> None:
    """Replace the rows of the table `prices` by ``prices``: by model, those of a million tokens of prompts and of
    answers. Does nothing without prices.
    """
    wanted = sorted(
        (model, float(prompt), float(completion), currency) for model, (prompt, completion) in prices.items()
    )
    if (
        not wanted
        or [tuple(row) for row in client.query("SELECT * FROM prices FINAL ORDER BY model").result_rows] == wanted
    ):
        return
    client.command("TRUNCATE TABLE prices")
    names = [column.name for column in PRICES.columns]
    client.insert("prices", wanted, column_names=names, settings={"insert_deduplicate": 0})


def present_table(client: "Client", name: str) -> PresentTable:
    """Returns the table ``name`` as it is; without columns if there is none."""
    parameters = {"table": name}
    columns = client.query(
        "SELECT name, type, if(default_kind = 'DEFAULT', default_expression, '') FROM system.columns "
        "WHERE database = currentDatabase() AND table = {table:String}",
        parameters=parameters,
    ).result_rows
    tables = client.query(
        "SELECT partition_key, create_table_query FROM system.tables "
        "WHERE database = currentDatabase() AND name = {table:String}",
        parameters=parameters,
    ).result_rows
    indexes = client.query(
        "SELECT name FROM system.data_skipping_indices WHERE database = currentDatabase() AND table = {table:String}",
        parameters=parameters,
    ).result_rows
    key, query = (str(tables[0][0]), str(tables[0][1])) if tables else ("", "")
    return PresentTable(
        {str(column): str(type_) for column, type_, _ in columns},
        key,
        expiry_in(query),
        {str(column): str(made) for column, _, made in columns if made},
        compact_up_to_in(query),
        frozenset(str(name) for (name,) in indexes),
    )


def _finish_swaps(client: "Client", tables: Sequence[Table], cluster: str) -> list[str]:
    outdated_now = _reasons(client, tables)
    done = []
    for table in tables:
        exists, new, before = (
            bool(present_table(client, name).types) for name in (table.name, new_name(table), before_name(table))
        )
        is_current = exists and table.name not in outdated_now
        statements = rest_of_swap(table, exists=exists, is_current=is_current, new=new, before=before, cluster=cluster)
        for statement in statements:
            client.command(statement)
        if statements:
            done.append(f"{table.name}: finished an interrupted migration")
            log.info("finished an interrupted migration of the table %s", table.name)
    return done


def _reasons(client: "Client", tables: Sequence[Table]) -> dict[str, list[str]]:
    found = ((table, present_table(client, table.name)) for table in tables)
    reasons = {table.name: incompatibilities(table, present) for table, present in found if present.types}
    return {name: why for name, why in reasons.items() if why}
