"""The Kafka client's log lines, rationed where they come from the SDK's thread.

While a broker is away the client logs every attempt to reach it, at times hundreds of lines a second; an agent's log
is not ours to fill. The host's own use of the same client is not touched.
"""

import logging
import time

THREAD_NAME = "headrace-sdk"
"""Name of the SDK's thread, by which its log lines are told from the host's."""

LOGGERS = ("aiokafka", "aiokafka.conn", "aiokafka.producer.sender", "aiokafka.producer.producer", "aiokafka.cluster")
"""Loggers that a producer writes to."""

EVERY_S = 60.0
"""A message of the same form comes through once in this time."""

MAX_FORMS = 1_000
"""Forms that are remembered; beyond it all are forgotten."""


class Ration(logging.Filter):
    """Lets a message of a form (its text before arguments are filled in) through once in ``EVERY_S`` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is logged."""
        if record.threadName != THREAD_NAME:
            return True
        form, now = str(record.msg), time.monotonic()
        if now - self._seen.get(form, -EVERY_S) < EVERY_S:
            return False
        if len(self._seen) >= MAX_FORMS:
            self._seen.clear()
        self._seen[form] = now
        return True


_RATION = Ration()


def ration_client_log() -> None:
    """Put the ration in place; again and again does no harm."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_RATION)
