"""Keeps the table `starts`: a row for each trajectory that has started, from the rows of `events`."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.events import TrajectoryStarted
from headrace.streams.clickhouse.columns import arrow_schema
from headrace.streams.clickhouse.tables import EVENTS, NUMBER_OF_TRAJECTORY, STARTS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_COLUMN_OF_EVENTS = {column.was: column.name for column in EVENTS.columns if column.was}
"""Column of `starts` → that of `events`, if it has another name."""

_ADD_MISSING = (
    f"INSERT INTO {STARTS.name} ({', '.join(f'`{column.name}`' for column in STARTS.stored)})\n"
    + f"SELECT {', '.join(f'`{_COLUMN_OF_EVENTS.get(column.name, column.name)}`' for column in STARTS.stored)}\n"
    + f"FROM {EVENTS.name} WHERE type = '{TrajectoryStarted.TYPE}'\n"
    + f"AND {NUMBER_OF_TRAJECTORY} NOT IN (SELECT {NUMBER_OF_TRAJECTORY} FROM {STARTS.name})\n"
    + "SETTINGS max_partitions_per_insert_block = 0, insert_deduplicate = 0"
)


def starts_of(events: pa.Table) -> pa.Table:
    """Returns the rows of `starts` for ``events``, an insert into `events`."""
    columns = [events.column(_COLUMN_OF_EVENTS.get(column.name, column.name)) for column in STARTS.inserted]
    table = pa.Table.from_arrays(columns, schema=arrow_schema(STARTS))
    return table.filter(pc.equal(events.column("type"), TrajectoryStarted.TYPE))


def add_missing_starts(client: "Client") -> None:
    """Insert the starts that `events` has and `starts` lacks: after a crash, or if the table is new. Raises the
    client's ``ClickHouseError``.
    """
    client.command(_ADD_MISSING)
