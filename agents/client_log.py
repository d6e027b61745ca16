"""The Kafka client's log lines, rationed: those of the SDK's thread in an agent, all of them in a worker.

While a broker is away the client logs every attempt to reach it, at times hundreds of lines a second; an agent's log
is not ours to fill, and a worker's has better things to say. The host's own use of the same client is not touched.
"""

import logging
import time
from collections.abc import Callable

THREAD_NAME = "headrace-sdk"
"""Name of the SDK's thread, by which its log lines are told from the host's."""

LOGGERS = (
    *("aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.producer.sender", "aiokafka.producer.producer"),
    *("aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator", "aiokafka.consumer.consumer"),
)
"""Loggers that the client writes to when it does not reach its broker."""

EVERY_S = 60.0
"""A message of the same form comes through once in this time."""

MAX_FORMS = 1_000
"""Forms that are remembered; beyond it all are forgotten."""


class Ration(logging.Filter):
    """Lets a message of a form (its text before arguments are filled in) through once in ``EVERY_S`` seconds."""

    def __init__(self, concerns: Callable[[logging.LogRecord], bool]) -> None:
        """Rations the records that it ``concerns``."""
        super().__init__()
        self._concerns = concerns
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is logged."""
        if not self._concerns(record) or record.levelno < logging.WARNING:
            return True
        form, now = str(record.msg), time.monotonic()
        if now - self._seen.get(form, -EVERY_S) < EVERY_S:
            return False
        if len(self._seen) >= MAX_FORMS:
            self._seen.clear()
        self._seen[form] = now
        return True


def of_the_sdk(record: logging.LogRecord) -> bool:
    """Whether the SDK's thread wrote it."""
    return record.threadName == THREAD_NAME


_OF_THE_SDK = Ration(of_the_sdk)
_ALL = Ration(lambda record: True)


def ration_client_log(*, everywhere: bool = False) -> None:
    """Put the ration in place, for the SDK's thread or ``everywhere``; again and again does no harm."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ALL if everywhere else _OF_THE_SDK)
