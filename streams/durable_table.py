"""A Faust table that is written on purpose: every write can be awaited, and none happens behind one's back.

Faust's own ``table[key] = value`` cannot be awaited and cannot be used by a timer. Here a write goes to memory and to
the changelog, and the future that it returns resolves once the broker has it. After a rebalance Faust fills the table
from the changelog.
"""

from collections.abc import Collection, Iterator
from typing import Any

import faust


class DurableTable:
    """Entries by partition and key."""

    def __init__(self, app: faust.App, name: str, *, partitions: int) -> None:
        """``name`` is in the changelog's too. ``partitions``: as many as the topic has whose state this is."""
        self._app = app
        self._table = app.Table(name, key_type=bytes, value_type=bytes, partitions=partitions)
        self._changelog = self._table.changelog_topic.get_topic_name()

    async def put(self, partition: int, key: str, value: bytes | None) -> Any:
        """Keep ``value``, or forget it; the future that it returns resolves once the changelog has it."""
        full = f"{partition}/{key}".encode()
        if value is None:
            self._table.data.pop(full, None)
        else:
            self._table.data[full] = value
        return await self._app.producer.send(self._changelog, full, value, partition, None, None)

    def entries(self, partitions: Collection[int]) -> Iterator[tuple[int, str, bytes]]:
        """What is kept for ``partitions``: partition, key, value."""
        for full, value in self._table.data.items():
            number, _, key = full.decode().partition("/")
            if int(number) in partitions:
                yield int(number), key, value
