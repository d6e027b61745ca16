"""A coroutine that is begun at once, and becomes a task only where it has to wait."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """``coroutine``, run to its end or to where it first waits; awaiting it goes on from there."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run the first step; what that raises is raised here."""
        self._coroutine = coroutine
        self._awaited: Any = None
        self.result: T | None = None
        """What it returned, once it is done."""
        self.done = False
        """Whether it came to its end without waiting."""
        try:
            self._awaited = coroutine.send(None)
        except StopIteration as ended:
            self.result, self.done = ended.value, True

    def __await__(self) -> Generator[Any, Any, T | None]:
        while not self.done:
            try:
                try:
                    sent = yield self._awaited
                except BaseException as error:  # noqa: BLE001 - a cancellation too belongs to the coroutine
                    self._awaited = self._coroutine.throw(error)
                else:
                    self._awaited = self._coroutine.send(sent)
            except StopIteration as ended:
                self.result, self.done = ended.value, True
        return self.result
