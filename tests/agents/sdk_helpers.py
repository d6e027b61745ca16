"""Helpers of the tests of the SDK."""

import time
from collections.abc import Callable

from headrace.agents.encoding import Note

NOWHERE = "127.0.0.1:9"
"""The discard port: no broker listens there, so every event stays in the queue."""


def kinds(notes: list[Note]) -> list[str]:
    return [note.model.TYPE.removeprefix("headrace.").removesuffix(".v1") for note in notes]


def until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``, such as a log line that another thread writes; the limit only detects hanging."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()
