"""Records that a sink would read, written to ClickHouse as the sink writes them.

log.add("rewards", "t-1", Reward(…), id="r-1")
log.write(client, "first")      # and again with another token: as a sink of another group would
"""

from time import time
from zlib import crc32

from clickhouse_connect.driver.client import Client

from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.wire import encode
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.database import insert
from headrace.streams.raw import StoredRecord

PARTITIONS = 3
NOW_MS = int(time() * 1000)
"""Time of the records in the log: older ones of some topics would expire."""


class StoredLog:
    """Records that the sink would read, in partition order."""

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self._ends = [0] * PARTITIONS

    def add(
        self, topic: str, key: str, payload: Record, *, id: str, sequence: int | None = None, time_ms: int | None = None
    ) -> None:
        envelope = Envelope(id, payload.TYPE, "/test", NOW_MS if time_ms is None else time_ms, key, sequence)
        message = encode(payload, key=key, envelope=envelope)
        partition = crc32(key.encode()) % PARTITIONS
        place = (topic, partition, self._ends[partition], NOW_MS)
        self.records.append(StoredRecord(*place, message.key, message.value, message.headers))
        self._ends[partition] += 1

    def write(self, client: Client, token: str) -> None:
        """As the sink does, in batches of some records."""
        for at in range(0, len(self.records), 500):
            batch = convert(self.records[at : at + 500])
            assert not batch.unreadable
            for table, rows in batch.tables:
                insert(client, table, rows, f"{token}:{at}:{table.name}")
