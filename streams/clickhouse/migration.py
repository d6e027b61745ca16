"""Statements that copy a table of an older release into one of this release, without a loss. Pure.

An older release stored ids as text and had no column `logged_at`, by which rows expire and are partitioned: neither can
be changed in place. Its rows are copied and expire one retention after the copy; columns that it lacked are computed
from others where that is possible.

    DROP TABLE IF EXISTS events__new
    CREATE TABLE IF NOT EXISTS events__new ( … )
    INSERT INTO events__new (`id_sent`, `time`, …) SELECT id, `time`, … FROM events
    RENAME TABLE events TO events__before, events__new TO events
    DROP TABLE IF EXISTS events__before
"""

from dataclasses import dataclass

from headrace.schemas.operator_error import OperatorError
from headrace.streams.clickhouse.columns import Column, Table
from headrace.streams.clickhouse.ddl import PresentTable, create_statement, on_cluster

COMMAND = "headrace tables --migrate"
"""The command that runs the migration."""


class OutdatedTablesError(OperatorError, ValueError):
    """Tables of an older release cannot be changed in place; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """The statements of one table's migration, in order."""

    copy: tuple[str, ...]
    """Create the new table and fill it; can be repeated."""
    counts: tuple[str, str]
    """Queries for the numbers of rows before and after, which must agree."""
    swap: tuple[str, ...]
    """Replace the old table by the new one."""


def migration_of(table: Table, present: PresentTable, cluster: str = "") -> Migration:
    """Returns the migration of a table like ``present`` to ``table``."""
    new, before, on = new_name(table), before_name(table), on_cluster(cluster)
    # Ids that the table has in the form of this release are copied as they are, and not computed again.
    columns = table.stored if present.types.get("id") == "UUID" else table.inserted
    copied = {column.name: made for column in columns if (made := _copied(column, present))}
    names = ", ".join(f"`{name}`" for name in copied)
    return Migration(
        copy=(
            _drop(new, cluster),
            create_statement(table, cluster, name=new),
            f"INSERT INTO {new} ({names}) SELECT {', '.join(copied.values())} FROM {table.name} "
            "SETTINGS max_partitions_per_insert_block = 0",
        ),
        counts=(f"SELECT count() FROM {table.name} FINAL", f"SELECT count() FROM {new} FINAL"),
        swap=(
            f"RENAME TABLE {table.name} TO {before}, {new} TO {table.name}{on}",
            _drop(before, cluster),
        ),
    )


def new_name(table: Table) -> str:
    """Returns the name of the copy of ``table`` until it replaces the table."""
    return f"{table.name}__new"


def before_name(table: Table) -> str:
    """Returns the name of the table that the copy replaced, until it is dropped."""
    return f"{table.name}__before"


def rest_of_swap(
    table: Table, *, exists: bool, is_current: bool, new: bool, before: bool, cluster: str = ""
) -> tuple[str, ...]:
    """Returns the statements that finish a swap of ``table`` that was interrupted; empty if none was.

    ``exists`` and ``is_current``: whether there is a table of its name, and whether it needs no migration; ``new`` and
    ``before``: whether there are tables of those names. A swap renames the table first and then its copy, which is
    complete by then. No rows are dropped that are not in the table.
    """
    if not before:
        return ()
    if not new:
        return (_drop(before_name(table), cluster),) if exists else ()
    drops = (_drop(new_name(table), cluster), _drop(before_name(table), cluster))
    if not exists:
        return f"RENAME TABLE {new_name(table)} TO {table.name}{on_cluster(cluster)}", drops[1]
    if not is_current:
        return ()
    # A sink has made the table anew between the two renamings. Rows that are copied twice collapse.
    names = ", ".join(f"`{column.name}`" for column in table.stored)
    copy = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {new_name(table)}"
    return f"{copy} SETTINGS max_partitions_per_insert_block = 0", *drops


def _drop(name: str, cluster: str) -> str:
    # A drop is refused above 50 GB, to prevent accidents, unless the limit is lifted.
    unlimited = "SETTINGS max_table_size_to_drop = 0, max_partition_size_to_drop = 0"
    return f"DROP TABLE IF EXISTS {name}{on_cluster(cluster)} {unlimited}"


def outdated(reasons: dict[str, list[str]]) -> OutdatedTablesError:
    """Returns the error for tables that need a migration, by name, with the reasons."""
    found = "; ".join(f"table {name}: {', '.join(why)}" for name, why in reasons.items())
    return OutdatedTablesError(
        f"ClickHouse has tables of an older release, which cannot be changed in place ({found}). Run `{COMMAND}`: it "
        "copies their rows into tables of this release; records wait in Kafka meanwhile. (Or drop them and set "
        "sink.group to a new name: all topics are read again, but rows of records that retention has deleted are lost.)"
    )


def _copied(column: Column, present: PresentTable) -> str:
    """Returns the expression for ``column`` over the columns that are present; empty if it cannot be had from them."""
    if column.name in present.types:
        return f"`{column.name}`"
    if column.was in present.types:
        return f"`{column.was}`"
    return column.from_old
