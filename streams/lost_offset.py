"""Lost positions: committed offsets that expired, and records that retention deleted before they were read.

A process without its committed offset recovers it from its own output, or refuses to start. Unrecoverable losses are
reported: counted, logged and raised as an alert (``schemas/kafka/expired.py`` has the rule for all readers).
"""

import logging
import time

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import EXPIRED, ExpiredRange, report_expired
from headrace.schemas.kafka.sending import send
from headrace.schemas.operator_error import OperatorError
from headrace.schemas.topics import ALERTS
from headrace.streams.alerts import alert_message
from headrace.streams.raw import Outgoing

logger = logging.getLogger(__name__)

KIND = "records_expired"
"""Kind of the alert about deleted records."""
TOPIC_DELETED = "topic_deleted"
"""Kind of the alert about a deleted topic."""
TOPIC_RECREATED = "topic_recreated"
"""Kind of the alert about a topic that was deleted and created again."""
LOG_ENDS_EARLY = "log_ends_early"
"""Kind of the alert about a log that ends before what was processed of it."""


class LostOffsetError(OperatorError, RuntimeError):
    """The position in a partition cannot be determined; the message gives the remedy."""


def expired_alert(
    source: str, expired: ExpiredRange, *, taken: int | None = None, announced: int | None = None
) -> Outgoing:
    """Returns an alert of ``source`` that ``expired`` was to be read; counts and logs what it has lost.

    ``source`` had processed everything before the offset ``taken``, by default ``expired.position``. Records that it
    had to read again, and records that it never read, are deleted. ``announced``: end of the batch that it had begun to
    write at that position.
    """
    (topic, partition), committed, begin = expired
    taken = committed if taken is None else max(taken, committed)
    unread = max(0, begin - taken)
    if unread:
        report_expired(source, expired._replace(position=taken))
    what = (
        f"{unread:,} offsets were never read (records, or marks of transactions)"
        if unread
        else "all of them had been read, but those of open trajectories cannot be read again"
    )
    details = {"topic": topic, "partition": partition, "committed": committed, "begin": begin, "unread": unread}
    if announced is not None and announced > committed:
        what += f", unless the batch up to {announced}, whose writing had begun, was stored"
        details["announced"] = announced
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
        details=details,
    )
    return Outgoing(ALERTS, message, now_ms)


def replaced_sentence(source: str, log: ReplacedLog, then: str, *, is_new_topic: bool) -> str:
    """Returns what happened: ``log`` is not the one that ``source`` had processed up to ``log.position``.

    ``then``: what ``source`` does now, and the remedy. ``is_new_topic``: whether the ids show that the topic was
    deleted and created again. Else its broker lost records, or the former id is unknown.
    """
    (topic, partition), position, end = log
    what = (
        f"{topic}[{partition}] was deleted and created again, after {source} had processed it up to offset {position}"
        if is_new_topic
        else f"{topic}[{partition}] ends at {end}, but {source} had processed it up to offset {position}: its broker "
        "lost records, or the topic was deleted and created again"
    )
    return f"{what}; {then}"


def replaced_alert(source: str, log: ReplacedLog, topic_id: str, sentence: str, *, is_new_topic: bool) -> Outgoing:
    """Returns an alert of ``source`` with ``sentence``, its :func:`replaced_sentence`, and logs it; offsets of the new
    log are counted anew when they expire. ``topic_id``: present id of the topic; empty if it is unknown.
    """
    (topic, partition), position, end = log
    EXPIRED.start_again(log.place)
    logger.error("%s: %s", source, sentence)
    now_ms = time.time_ns() // 1_000_000
    message = alert_message(
        TOPIC_RECREATED if is_new_topic else LOG_ENDS_EARLY,
        sentence,
        source=source,
        subject=f"{topic}[{partition}]@{position}",
        time_ms=now_ms,
        about=(topic, partition, topic_id, position),
        details={"topic": topic, "partition": partition, "committed": position, "end": end, "topic_id": topic_id},
    )
    return Outgoing(ALERTS, message, now_ms)


async def publish(bootstrap: str, alert: Outgoing) -> None:
    """Write ``alert`` outside of a transaction: its source ends without another commit."""
    async with open_producer(bootstrap) as producer:
        await (await send(producer, alert.topic, alert.message))


def deleted_alert(source: str, topic: str, topic_id: str) -> Outgoing:
    """Returns an alert of ``source``: the topic ``topic`` with the id ``topic_id`` was deleted while it was read."""
    now_ms = time.time_ns() // 1_000_000
    message = alert_message(
        TOPIC_DELETED,
        f"the topic {topic} was deleted; {source} writes what it had read of it, and continues with the other topics. "
        "Create it again with `headrace topics --create`: it is then read from its start.",
        source=source,
        subject=topic,
        time_ms=now_ms,
        about=(topic, topic_id),
        details={"topic": topic, "topic_id": topic_id},
    )
    return Outgoing(ALERTS, message, now_ms)
