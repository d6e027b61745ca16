"""A coroutine that starts immediately, and needs a task only if it has to wait."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerTask(Generic[T]):
    """Runs ``coroutine`` to its end or its first wait; awaiting it continues from there."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run the first step; its exceptions are raised here."""
        self._coroutine = coroutine
        self._awaited: Any = None
        self.result: T | None = None
        """Its result, once it is done."""
        self.done = False
        """Whether it has ended."""
        try:
            self._awaited = coroutine.send(None)
        except StopIteration as ended:
            self.result, self.done = ended.value, True

    def __await__(self) -> Generator[Any, Any, T | None]:
        while not self.done:
            try:
                try:
                    sent = yield self._awaited
                except BaseException as error:  # noqa: BLE001 - the coroutine must also see cancellations
                    self._awaited = self._coroutine.throw(error)
                else:
                    self._awaited = self._coroutine.send(sent)
            except StopIteration as ended:
                self.result, self.done = ended.value, True
        return self.result
