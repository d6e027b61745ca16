"""The broker, as far as it can be away: one error for every way in which Kafka's client notices."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import KafkaError


class LogUnavailable(RuntimeError):
    """Kafka did not answer, or took back what it had begun. Whatever was under way can be tried again."""


@contextmanager
def log_trouble(bootstrap: str, what: str) -> Iterator[None]:
    """Raises :class:`LogUnavailable` for what the client raises while it does ``what``."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise LogUnavailable(f"Kafka at {bootstrap} is out of reach: nobody can {what} ({error!r})") from error
