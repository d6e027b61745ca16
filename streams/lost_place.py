"""A place in the log that is gone: offsets that the broker forgot, records that retention took before they were read.

A process that has lost its place finds it again in what it wrote itself, or refuses; what nothing can bring back is
said.
"""

import time

from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import ALERTS
from headrace.streams.alerts import alert_message
from headrace.streams.raw import Outgoing

KIND = "records_expired"
"""Kind of the alert."""


class LostPlaceError(OperatorError, RuntimeError):
    """How far a partition was taken cannot be told any more; the message says the way out."""


def expired_alert(source: str, topic: str, partition: int, committed: int, taken: int, begin: int) -> Outgoing:
    """The alert of ``source`` that the log of a partition begins at ``begin``, behind its ``committed`` offset.

    It had ``taken`` everything before that offset already; what it had to read again is gone, and so is what it never
    read.
    """
    unread = max(0, begin - taken)
    what = (
        f"{unread:,} offsets were never read"
        if unread
        else "all of it had been read, but what was still open there cannot be read again"
    )
    now_ms = time.time_ns() // 1_000_000
    message = alert_message(
        KIND,
        f"{topic}[{partition}] begins at {begin}, and {source} was to go on at {committed}: retention took what stood "
        f"between; {what}. Give {topic} a longer retention.ms than its readers are ever stopped.",
        source=source,
        subject=f"{topic}[{partition}]@{begin}",
        time_ms=now_ms,
        about=(topic, partition, begin),
        details={"topic": topic, "partition": partition, "committed": committed, "begin": begin, "unread": unread},
    )
    return Outgoing(ALERTS, message, now_ms)
