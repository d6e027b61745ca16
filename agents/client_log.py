"""Rate limit for the log lines of the Kafka client: those of the SDK's thread in an agent, all of them in a worker.

While a broker is unavailable the client logs every attempt to connect, sometimes hundreds of lines per second, which
would flood the log of an agent or a worker. In an agent, the host's own use of the same client is not affected.
"""

import logging
import time
from collections.abc import Callable

THREAD_NAME = "headrace-sdk"
"""Name of the SDK's thread, which distinguishes its log lines from the host's."""

LOGGERS = (
    *("aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.producer.sender", "aiokafka.producer.producer"),
    *("aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator", "aiokafka.consumer.consumer"),
)
"""Loggers of the client that report connection problems."""

INTERVAL_S = 60.0
"""Shortest time between two messages with the same template."""

MAX_TEMPLATES = 1_000
"""Largest number of templates to remember; when it is reached, all are forgotten."""


class LogRateLimit(logging.Filter):
    """Passes one message per template (the message before its arguments are filled in) every ``INTERVAL_S`` seconds."""

    def __init__(self, applies_to: Callable[[logging.LogRecord], bool]) -> None:
        """``applies_to``: whether a record is subject to the limit."""
        super().__init__()
        self._applies_to = applies_to
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is logged."""
        if not self._applies_to(record) or record.levelno < logging.WARNING:
            return True
        template, now = str(record.msg), time.monotonic()
        if now - self._logged_at.get(template, -INTERVAL_S) < INTERVAL_S:
            return False
        if len(self._logged_at) >= MAX_TEMPLATES:
            self._logged_at.clear()
        self._logged_at[template] = now
        return True


def from_sdk_thread(record: logging.LogRecord) -> bool:
    """Return whether the SDK's thread created ``record``."""
    return record.threadName == THREAD_NAME


_SDK_THREAD = LogRateLimit(from_sdk_thread)
_ALL_THREADS = LogRateLimit(lambda record: True)


def limit_client_log(*, everywhere: bool = False) -> None:
    """Install the limit, for the SDK's thread or ``everywhere``. Repeated calls have no further effect."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ALL_THREADS if everywhere else _SDK_THREAD)
