"""Lost positions: committed offsets that expired, and records that retention deleted before they were read.

A process without its committed offset recovers it from its own output, or refuses to start. Unrecoverable losses are
reported.
"""

import time

from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import ALERTS
from headrace.streams.alerts import alert_message
from headrace.streams.raw import Outgoing

KIND = "records_expired"
"""Kind of the alert."""


class LostOffsetError(OperatorError, RuntimeError):
    """The position in a partition cannot be determined; the message gives the remedy."""


def expired_alert(source: str, topic: str, partition: int, committed: int, taken: int, begin: int) -> Outgoing:
    """Returns an alert of ``source``: the log start offset of a partition is ``begin``, after its ``committed`` offset.

    ``source`` had processed everything before the offset ``taken``. Records that it had to read again, and records that
    it never read, are deleted.
    """
    unread = max(0, begin - taken)
    what = (
        f"{unread:,} offsets were never read"
        if unread
        else "all of them had been read, but those of open trajectories cannot be read again"
    )
    now_ms = time.time_ns() // 1_000_000
    message = alert_message(
        KIND,
        f"{topic}[{partition}] starts at {begin}, but {source} was to resume at {committed}: retention deleted the "
        f"records in between; {what}. Set retention.ms of {topic} above the longest time for which its consumers are "
        "stopped.",
        source=source,
        subject=f"{topic}[{partition}]@{begin}",
        time_ms=now_ms,
        about=(topic, partition, begin),
        details={"topic": topic, "partition": partition, "committed": committed, "begin": begin, "unread": unread},
    )
    return Outgoing(ALERTS, message, now_ms)
