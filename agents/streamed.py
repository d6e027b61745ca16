"""Generators that pass an agent's or a tool's stream through and record it.

The wrapped generator is advanced only when its reader asks, with what the reader sends or throws; its items, return
value and exceptions reach the reader unchanged. Between items the context is the reader's own.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from time import perf_counter
from typing import Any, Final, Protocol

from headrace.agents.encoding import Pieces
from headrace.agents.raised import Raised
from headrace.agents.trajectory import CURRENT, ToolCall, Trajectory, is_abort, snapshot
from headrace.schemas.events import EndStatus

MAX_OBJECTS: Final = 1_000
"""Most items other than texts that are kept of a stream."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call, by position and by name."""


class Recording(Protocol):
    """Records one stream. No method raises."""

    def resume(self) -> None:
        """The reader asks for an item."""

    def pause(self) -> None:
        """The stream has answered."""

    def add(self, item: Any) -> None:
        """The stream produced an item."""

    def finish(self, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """The stream ended: by itself, with an ``error``, or because its reader stopped."""


class Collected:
    """The leading items of a stream, in bounded memory, and its times."""

    def __init__(self, most: int) -> None:
        """``most``: characters and bytes that are kept."""
        self._most = self._room = most
        self._texts: list[str] = []
        self._objects: list[Any] = []
        self._is_full = False
        self._items = 0
        self._began: float | None = None
        self._first_item_s: float | None = None

    def begin(self) -> None:
        """Note when the first item is requested."""
        if self._began is None:
            self._began = perf_counter()

    def add(self, item: Any) -> None:
        """Add an item; once one does not fit, it and all later ones are only counted."""
        self._items += 1
        if self._first_item_s is None:
            self._first_item_s = self._seconds()
        if self._is_full:
            return
        kind = type(item)
        self._room -= len(item) if kind is str or kind is bytes else 1
        if self._room < 0 or len(self._objects) >= MAX_OBJECTS:
            self._is_full = True
        elif kind is str and not self._objects:
            self._texts.append(item)
        else:
            self._objects += [*self._texts, snapshot(item, self._most)]
            self._texts = []

    def result(self) -> Any:
        """Return what is kept: the texts, to be joined, or a list."""
        return self._objects or (Pieces(tuple(self._texts)) if self._texts else None)

    def summary(self, *, complete: bool) -> dict[str, Any]:
        """Return the fields of :class:`headrace.schemas.events.Streamed`."""
        return {
            "items": self._items,
            "kept": len(self._texts) or len(self._objects),
            "first_item_s": self._first_item_s,
            "seconds": self._seconds(),
            "complete": complete,
        }

    def _seconds(self) -> float | None:
        return None if self._began is None else perf_counter() - self._began


class ToolRecording:
    """A stream that is a tool's result."""

    def __init__(self, call: ToolCall, most: int) -> None:
        self._call = call.__enter__()
        self._collected = Collected(most)
        self._is_recorded = False
        self.add = self._collected.add
        self.resume = self._collected.begin
        call.trajectory.open_streams[self] = None

    def pause(self) -> None:
        """Nothing changes in the context."""

    def finish(self, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """Record the result; a failure of the tool as such."""
        if self._is_recorded:
            return
        self._is_recorded = True
        call = self._call
        call.trajectory.open_streams.pop(self, None)
        call.stream = self._collected.summary(complete=error is None and not is_stopped)
        if error is None or is_stopped:
            call.result = self._collected.result()
            call.__exit__(None, None, None)
        else:
            call.__exit__(type(error), error, None)

    def cut(self) -> None:
        """Record what was read until the trajectory's end. An asynchronous generator that its reader leaves is closed
        by its event loop, at any time after that."""
        self.finish(is_stopped=True)


class TrajectoryRecording:
    """A stream that is a trajectory, which is the current one inside it, and only there."""

    def __init__(self, trajectory: Trajectory, most: int) -> None:
        self._trajectory = trajectory
        self._collected = Collected(most)
        self._outer: Trajectory | None = None
        self._inner: Trajectory | None = None
        self._is_entered = False
        self.add = self._collected.add

    def resume(self) -> None:
        """Make the trajectory that was current inside the stream the current one."""
        self._collected.begin()
        self._outer = CURRENT.get()
        if self._is_entered:
            CURRENT.set(self._inner)
        else:
            self._is_entered = True
            self._trajectory.__enter__()

    def pause(self) -> None:
        """Make the reader's trajectory the current one."""
        self._inner = CURRENT.get()
        CURRENT.set(self._outer)
        self._outer = None

    def finish(self, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """End the trajectory, unless the function has ended it."""
        if self._trajectory.is_open:
            fields: dict[str, Any] = {
                "answer": self._collected.result(),
                "stream": self._collected.summary(complete=error is None and not is_stopped),
            }
            if is_stopped:
                self._trajectory.end(EndStatus.ABORTED, error="the reader of the stream stopped", **fields)
            elif error is None:
                self._trajectory.end(**fields)
            else:
                status = EndStatus.ABORTED if is_abort(error) else EndStatus.FAILED
                self._trajectory.end(status, error=Raised.of(error), **fields)
        self._trajectory.__exit__(None, None, None)


def record_generator(
    function: Callable[..., Generator[Any, Any, Any]], begin: Callable[[Call], Recording]
) -> Callable[..., Generator[Any, Any, Any]]:
    """Return ``function``, a generator function, whose calls are recorded once their first item is requested."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        stream = function(*arguments, **keywords)
        recording = begin((arguments, keywords))
        step: Callable[[Any], Any] = stream.send
        value, is_stopped = None, False
        while True:
            recording.resume()
            try:
                item = step(value)
            except StopIteration as end:
                recording.finish(is_stopped=is_stopped)
                return end.value
            except BaseException as error:
                recording.finish(error, is_stopped=is_stopped and type(error) is GeneratorExit)
                raise
            finally:
                value = None  # an exception that refers to this frame would keep it alive
                recording.pause()
            recording.add(item)
            try:
                value = yield item
                step = stream.send
            except BaseException as error:  # noqa: BLE001 - thrown on, also a GeneratorExit: the stream decides
                step, value, is_stopped = stream.throw, error, type(error) is GeneratorExit

    return run


def record_async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]], begin: Callable[[Call], Recording]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return ``function``, an asynchronous generator function, whose calls are recorded once their first item is
    requested."""

    @functools.wraps(function)
    async def run(*arguments: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        stream = function(*arguments, **keywords)
        recording = begin((arguments, keywords))
        step: Callable[[Any], Any] = stream.asend
        value, is_stopped = None, False
        while True:
            recording.resume()
            try:
                item = await step(value)
            except StopAsyncIteration:
                recording.finish(is_stopped=is_stopped)
                return
            except BaseException as error:
                recording.finish(error, is_stopped=is_stopped and type(error) is GeneratorExit)
                raise
            finally:
                value = None
                recording.pause()
            recording.add(item)
            try:
                value = yield item
                step = stream.asend
            except BaseException as error:  # noqa: BLE001 - thrown on, also a GeneratorExit: the stream decides
                step, value, is_stopped = stream.athrow, error, type(error) is GeneratorExit

    return run
