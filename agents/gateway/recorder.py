"""Makes the events of sessions durable, and keeps those of a refused call until the next call of its session.

An event's number in its trajectory is given once. If the journal refuses events, the client is told to try again later;
they are recorded before anything that follows them, so that the refusal leaves no gap. While events of a session are
being written, further ones of the same session gather and are written together. Events of a call that may still be
refused are held: they are recorded with the next ones of their session, or withdrawn.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.agents.gateway.journal import Journal, JournalFull
from headrace.agents.gateway.record import TrajectoryEvent

MAX_WAITING: Final = 10_000
"""Most events that wait for another attempt; those of the session that has waited longest become holes beyond it."""

SessionKey = tuple[str, str]
"""Tenant and scope."""


@dataclass(slots=True)
class _Batch:
    events: list[TrajectoryEvent] = field(default_factory=list)
    callers: "list[asyncio.Future[None]]" = field(default_factory=list)


class Recorder:
    """Records events by session."""

    def __init__(self, journal: Journal, now_ms: Callable[[], int]) -> None:
        """``now_ms``: the time in Unix milliseconds."""
        self._journal = journal
        self._now_ms = now_ms
        self._held: dict[SessionKey, list[TrajectoryEvent]] = {}
        self._waiting: OrderedDict[SessionKey, list[TrajectoryEvent]] = OrderedDict()
        self._gathered: dict[SessionKey, _Batch] = {}
        self._writing: dict[SessionKey, asyncio.Task[None]] = {}
        self.holes = 0
        """Events that were given up because too many waited for another attempt."""

    @property
    def waiting(self) -> int:
        """Number of events that were refused and wait for another attempt."""
        return sum(map(len, self._waiting.values()))

    def hold(self, session: SessionKey, events: Sequence[TrajectoryEvent]) -> None:
        """Record ``events`` with the next ones of the session."""
        if events:
            self._held.setdefault(session, []).extend(events)

    def withdraw(self, session: SessionKey, events: Sequence[TrajectoryEvent]) -> bool:
        """Forget ``events`` that are held or wait; return ``False``, and forget nothing, if any of them may have been
        recorded."""
        chosen = {id(event) for event in events}
        stores = [self._held] if session in self._writing else [self._held, self._waiting]
        if len(chosen) > sum(id(event) in chosen for store in stores for event in store.get(session, ())):
            return False
        for store in stores:
            if kept := [event for event in store.pop(session, ()) if id(event) not in chosen]:
                store[session] = kept
        return True

    def record(self, session: SessionKey, events: Sequence[TrajectoryEvent]) -> "asyncio.Future[None]":
        """Record ``events`` after all earlier ones of the session, and wait for these, too.

        The events are written even if the caller is cancelled. The future raises :class:`JournalFull` if the journal
        refuses them.
        """
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = [*self._held.pop(session, ()), *events]
        if not due and session not in self._writing and session not in self._waiting:
            recorded.set_result(None)
            return recorded
        recorded.add_done_callback(_retrieve)
        batch = self._gathered.setdefault(session, _Batch())
        batch.events += due
        batch.callers.append(recorded)
        if session not in self._writing:
            self._writing[session] = asyncio.get_running_loop().create_task(self._write(session))
        return recorded

    async def retry(self) -> None:
        """Record what waits, as far as the journal takes it."""
        for session in list(self._waiting):
            try:
                await self.record(session, ())
            except JournalFull:
                return

    async def drain(self) -> None:
        """Wait for everything that is being recorded."""
        while self._writing:
            await asyncio.wait(self._writing.values())

    async def _write(self, session: SessionKey) -> None:
        while (batch := self._gathered.pop(session, None)) is not None:
            due = [*self._waiting.get(session, ()), *batch.events]
            refusal: Exception | None = None
            try:
                await self._journal.record(due, self._now_ms())
                self._waiting.pop(session, None)
            except JournalFull as error:
                refusal = error
                self._waiting[session] = due  # a session that waits already keeps its place
            except Exception as error:  # noqa: BLE001 - the callers raise it
                refusal = error
                self._waiting.pop(session, None)
                self.holes += len(due)
            for caller in batch.callers:
                if caller.done():
                    continue
                if refusal is None:
                    caller.set_result(None)
                else:
                    caller.set_exception(refusal)
        del self._writing[session]
        self._give_up()

    def _give_up(self) -> None:
        """Forget the sessions that have waited longest, as far as too many events wait."""
        while self.waiting > MAX_WAITING:
            oldest = next((session for session in self._waiting if session not in self._writing), None)
            if oldest is None:
                return
            self.holes += len(self._waiting.pop(oldest))


def _retrieve(recorded: "asyncio.Future[None]") -> None:
    """A caller that left does not ask for the exception."""
    if not recorded.cancelled():
        recorded.exception()
