"""Unavailability of the broker: one error for all of the Kafka client's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import KafkaError


class LogUnavailable(RuntimeError):
    """Kafka did not answer, or aborted the transaction. The operation can be retried."""


@contextmanager
def broker_errors(bootstrap: str, what: str) -> Iterator[None]:
    """Turn the client's errors while it tries to ``what`` into :class:`LogUnavailable`."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise LogUnavailable(f"Kafka at {bootstrap} is unavailable: cannot {what} ({error!r})") from error
