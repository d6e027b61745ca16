"""A partition in memory: ``drive``, a replay and tests commit to it instead of to Kafka."""

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from headrace.streams.raw import Outgoing

T = TypeVar("T")


class MemoryPartition:
    """Keeps what is committed."""

    def __init__(self, state: Mapping[bytes, bytes] | None = None) -> None:
        """``state``: the state of an earlier one."""
        self.state: dict[bytes, bytes] = dict(state or {})
        """State by key, in the order of the last writes."""
        self.offsets: dict[str, int] = {}
        """First offset that was not processed, by topic."""
        self._outgoing: list[Outgoing] = []

    async def commit(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Take it into memory."""
        self.offsets |= offsets
        for key, value in state.items():
            self.state.pop(key, None)
            if value is not None:
                self.state[key] = value
        self._outgoing += outgoing

    def written(self) -> list[Outgoing]:
        """The records that were written since the last call."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which never waits, so that the runtime can run without an event loop.

    Raises ``RuntimeError`` if it waits after all.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("work in memory waited for something that only an event loop can give")
