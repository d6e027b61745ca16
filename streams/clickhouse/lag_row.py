"""Rows of the table `lag`."""

from headrace.streams.clickhouse.columns import Row
from headrace.streams.lag import ConsumerLag


def lag_row(lag: ConsumerLag, now_ms: int) -> Row:
    """Returns ``lag`` as a row of the table `lag`, measured at ``now_ms`` (Unix milliseconds)."""
    return {
        "time": now_ms,
        "consumer_group": lag.group,
        "topic": lag.topic,
        "partition": lag.partition,
        "records": lag.records,
        "seconds": lag.seconds,
    }
