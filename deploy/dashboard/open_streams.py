"""Counts the streams that are open, so that a handler refuses more than it can serve."""

from collections.abc import Iterator
from contextlib import contextmanager


class OpenStreams:
    """The open streams of a handler, of at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0

    @property
    def are_full(self) -> bool:
        """Whether no further one may be opened."""
        return self._open >= self._limit

    @contextmanager
    def one(self) -> Iterator[None]:
        """A ``with`` block during which one more is open."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
