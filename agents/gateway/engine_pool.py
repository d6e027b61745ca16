"""Several engines behind one interface: a call goes to the engine that its prefix chooses, or to the next one.

    pool = EnginePool([Engine("http://gpu1:8000"), Engine("http://gpu2:8000")])
    async with pool.generate(prefix_key, request) as (engine, answer): ...

A call whose engine cannot be reached goes to the next, as long as nothing of an answer arrived. After the first chunk
nothing is retried: another engine would sample another answer.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from headrace.agents.gateway.engine_choice import EngineChoice, EngineLimits
from headrace.agents.gateway.engine_errors import (
    REMEDY,
    EngineAnswerInvalid,
    EngineBroke,
    EngineError,
    EngineFailed,
    EngineUnavailable,
)
from headrace.agents.gateway.engines import Answer, Engine, ServedModel
from headrace.agents.gateway.generate_request import GenerateRequest, RenderedRequest

_log = logging.getLogger(__name__)

LOGGED_EVERY_S: Final = 60.0
"""Shortest time between two reports that one engine fails, in seconds."""

_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class _Waiter:
    key: bytes
    without: Collection[str]
    engine: "asyncio.Future[str]"


class EnginePool:
    """Engines with a limit of calls in flight. Use it in an ``async with``, or ``await .close()``."""

    def __init__(
        self,
        engines: Sequence[Engine],
        limits: EngineLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: the time in seconds, for how long engines that failed are left out."""
        self._limits = limits or EngineLimits()
        self._engines = {engine.url: engine for engine in engines}
        self._choice = EngineChoice([engine.url for engine in engines], self._limits)
        self._clock = clock
        self._waiters: deque[_Waiter] = deque()
        self._logged_at: dict[tuple[str, str], float] = {}
        """When something about an engine was last logged, by its address and what followed from it."""
        self._logged_as_failing: set[str] = set()

    @asynccontextmanager
    async def generate(self, key: bytes, request: GenerateRequest) -> AsyncIterator[tuple[Engine, Answer]]:
        """Generate on the engine that ``key`` chooses. Leaving the block aborts an answer that has not ended.

        Raises:
            EngineUnavailable: If no engine can be reached, or none has room in time.
            EngineError: What :meth:`Engine.generate` raises.
        """
        engine, answer = await self._on_first(key, lambda engine: engine.start(request), keeps=True)
        try:
            yield engine, answer
        except EngineBroke as error:
            self._failed(engine, error, 0.0)
            raise
        except (EngineFailed, EngineAnswerInvalid) as error:
            self._log_at_times(engine, error, "The engine's own log may say why")
            raise
        finally:
            answer.close()
            self._give_back(engine)

    async def render(self, key: bytes, path: str, body: bytes) -> tuple[RenderedRequest, ...]:
        """Render on the engine that ``key`` chooses, see :meth:`Engine.render`. Raises :class:`EngineError`."""
        return (await self._on_first(key, lambda engine: engine.render(path, body)))[1]

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models of the first engine that answers; all serve the same. Raises :class:`EngineError`."""
        return (await self._on_first(b"", Engine.models))[1]

    async def _on_first(
        self, key: bytes, call: Callable[[Engine], Awaitable[_T]], *, keeps: bool = False
    ) -> tuple[Engine, _T]:
        """Return the first engine of which ``call`` has a result, with the result. ``keeps``: the caller gives the
        engine back."""
        tried: list[str] = []
        while True:
            engine = self._engines[await self._take(key, tried)]
            is_kept = False
            try:
                found = await call(engine)
                is_kept = keeps
            except EngineUnavailable as error:
                self._try_next(engine, error, key, tried)
                continue
            except (EngineFailed, EngineAnswerInvalid) as error:
                self._log_at_times(engine, error, "The engine's own log may say why")
                raise
            finally:
                if not is_kept:
                    self._give_back(engine)
            self._succeeded(engine)
            return engine, found

    def in_flight(self) -> dict[str, int]:
        """Return the number of calls in flight of each engine, by its redacted address."""
        return {self._engines[url].shown: number for url, number in self._choice.in_flight().items()}

    @property
    def waiting(self) -> int:
        """Number of calls that wait for an engine with room."""
        return len(self._waiters)

    async def close(self) -> None:
        """Close the connections of all engines."""
        for engine in self._engines.values():
            await engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _try_next(self, engine: Engine, error: EngineUnavailable, key: bytes, tried: list[str]) -> None:
        """Leave ``engine`` out; raises ``error`` if no other engine can be tried."""
        self._failed(engine, error, error.retry_after_s)
        tried.append(engine.url)
        if not self._choice.candidates(key, self._clock(), tried):
            raise error

    def _failed(self, engine: Engine, error: EngineError, at_least_s: float) -> None:
        engine.failed()
        self._choice.failed(engine.url, self._clock(), at_least_s)
        if self._log_at_times(engine, error, "Calls go to other engines meanwhile, if there are any"):
            self._logged_as_failing.add(engine.url)
        self._refuse_waiters()

    def _log_at_times(self, engine: Engine, error: EngineError, then: str) -> bool:
        """Log ``error`` and ``then`` unless that was done a short time ago; returns whether it was logged."""
        now = self._clock()
        if now - self._logged_at.get((engine.url, then), float("-inf")) < LOGGED_EVERY_S:
            return False
        self._logged_at[engine.url, then] = now
        _log.warning("%s. %s", error, then)
        return True

    def _succeeded(self, engine: Engine) -> None:
        self._choice.succeeded(engine.url)
        if engine.url in self._logged_as_failing:
            self._logged_as_failing.remove(engine.url)
            _log.info("the engine at %s answers again", engine.shown)

    def _give_back(self, engine: Engine) -> None:
        self._choice.give_back(engine.url)
        self._serve_waiters()

    async def _take(self, key: bytes, without: Collection[str]) -> str:
        # Calls that waited longer go first.
        if not self._waiters and (url := self._choice.take(key, self._clock(), without)) is not None:
            return url
        if not self._choice.candidates(key, self._clock(), without):
            raise self._none_is_well()
        if len(self._waiters) >= self._limits.waiting:
            raise EngineUnavailable(None, f"{len(self._waiters):,} calls already wait for an engine")
        waiter = _Waiter(key, without, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._serve_waiters()  # an engine may have recovered since the last call ended
        has_engine = False
        try:
            async with asyncio.timeout(self._limits.wait_s):
                url = await waiter.engine
            has_engine = True
            return url
        except TimeoutError as error:
            raise EngineUnavailable(None, f"no engine had room within {self._limits.wait_s:g} s") from error
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not has_engine and not waiter.engine.cancelled() and waiter.engine.exception() is None:
                # Cancelled after an engine was assigned, and before this call could see it.
                self._choice.give_back(waiter.engine.result())
                self._serve_waiters()

    def _serve_waiters(self) -> None:
        """Give engines with room to those that wait longest."""
        if not self._waiters:
            return
        now = self._clock()
        for waiter in list(self._waiters):
            if not self._choice.has_room(now):
                return
            if waiter.engine.done():
                continue
            if (url := self._choice.take(waiter.key, now, waiter.without)) is not None:
                waiter.engine.set_result(url)
                self._waiters.remove(waiter)

    def _refuse_waiters(self) -> None:
        """Refuse calls whose last engine has failed while they waited."""
        now = self._clock()
        for waiter in list(self._waiters):
            if not waiter.engine.done() and not self._choice.candidates(waiter.key, now, waiter.without):
                waiter.engine.set_exception(self._none_is_well())
                self._waiters.remove(waiter)

    def _none_is_well(self) -> EngineUnavailable:
        shown = ", ".join(engine.shown for engine in self._engines.values())
        return EngineUnavailable(
            None, f"no engine can be reached: {shown}. {REMEDY}", max(1.0, self._choice.retry_after_s(self._clock()))
        )
