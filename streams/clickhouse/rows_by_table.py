"""The rows of a batch while it is converted, by table."""

from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.columns import RECORD_COLUMNS, RecordValues, TableRows
from headrace.streams.clickhouse.event_rows import EventRows
from headrace.streams.clickhouse.trajectory_rows import TrajectoryRows
from headrace.streams.raw import LogRecord


class RowsByTable(dict[str, TableRows]):
    """Rows by table name, created on first access: a batch lists its tables in the order of their first rows."""

    def __init__(self, *, by_models: bool = False) -> None:
        """``by_models``: leave every record to Python."""
        super().__init__()
        self.events = EventRows(by_models=by_models)
        self.trajectories = TrajectoryRows(by_models=by_models)

    def __missing__(self, name: str) -> TableRows:
        match name:
            case tables.EVENTS.name:
                self[name] = self.events
            case tables.TRAJECTORIES.name:
                self[name] = self.trajectories
            case _:
                self[name] = TableRows(tables.BY_NAME[name], RECORD_COLUMNS)
        return self[name]

    def take(self, records: list[LogRecord], start: int) -> int:
        """As :meth:`EventRows.take`."""
        end = self.events.take(records, start)
        if end > start:
            self.setdefault(tables.EVENTS.name, self.events)
        return end

    def add_trajectory(self, always: RecordValues, value: bytes) -> bool:
        """As :meth:`TrajectoryRows.add_payload`."""
        added = self.trajectories.add_payload(always, value)
        if added:
            self.setdefault(tables.TRAJECTORIES.name, self.trajectories)
        return added
