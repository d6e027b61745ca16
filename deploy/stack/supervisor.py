"""One process under supervision: started when what it needs serves, restarted when it dies, given up with its reason.

waiting → starting → ready → (it dies) → restarting → starting → …          stopped, failed: the ends
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process, address, command_of, metrics_address
from headrace.deploy.stack.state import PartStatus, State
from headrace.deploy.system.children import Child, stop, wait_for_exit
from headrace.deploy.system.data_folder import full_disk
from headrace.deploy.system.notify import ReadySocket

RESTART_WINDOW_S = 60.0
"""Deaths longer ago do not count."""
ROOM_POLL_S = 2.0
"""Seconds between two looks for room on a full disk."""
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 8.0


@dataclass(frozen=True, slots=True)
class StateChange:
    """A process went from one state to the next."""

    part: str
    """Its name."""
    state: State
    """Where it stands now."""
    seconds: float
    """Since its start began; 0 where it has not."""
    message: str = ""
    """Where it listens, or what went wrong, with the end of its log."""


def backoff_s(recent_deaths: int) -> float:
    """Pause before the next start: doubles from half a second to eight."""
    return min(_FIRST_BACKOFF_S * 2.0 ** (recent_deaths - 1), _LONGEST_BACKOFF_S)


class SupervisedProcess:
    """A process of a running stack. Only its own task starts its process; others ask."""

    def __init__(
        self,
        process: Process,
        settings: Settings,
        others: Mapping[str, "SupervisedProcess"],
        on_progress: Callable[[StateChange], None],
    ) -> None:
        self.process = process
        self.state = State.WAITING
        self.restarts = 0
        self.ready_s: float | None = None
        self.serves = asyncio.Event()
        """Set while it serves."""
        self._settings = settings
        self._others = others
        self._on_progress = on_progress
        self._log = settings.logs / f"{process.name}.log"
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._came_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_at = 0.0

    @property
    def status(self) -> PartStatus:
        """As ``headrace status`` shows it."""
        return PartStatus(
            state=self.state,
            address=address(self.process, self._settings),
            pid=self._child.pid if self._child else None,
            restarts=self.restarts,
            ready_s=self.ready_s,
            log=str(self._log),
            metrics=metrics_address(self.process, self._settings),
        )

    async def start(self) -> None:
        """Bring it up and keep it up; returns when it first serves. Raises :class:`StackError` if it never does."""
        if self._task is not None and not self._task.done():
            return
        self._came_up = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.process.name}")
        self._task.add_done_callback(self._on_end_of_supervision)
        await asyncio.shield(self._came_up)

    async def stop(self) -> None:
        """End it and leave it ended."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._child is not None:
            await stop(self._child, self._settings.stop_grace_s)
            self._child = None
            self._enter(State.STOPPED)

    def kill(self) -> None:
        """``kill -9`` of the running process, as an accident would; supervision goes on."""
        if self._child is None:
            raise StackError(f"{self.process.name} does not run: it is {self.state}.")
        self._child.kill_command()

    async def _supervise(self) -> None:
        deaths: deque[float] = deque()
        while True:
            try:
                await self._bring_up()
                if not self._came_up.done():
                    self._came_up.set_result(None)
                assert self._child is not None
                why = _died(self.process.name, await wait_for_exit(self._child), self._child)
                self._child.kill()  # Where its lifeline was killed, some of its tree may be left.
            except (StackError, OSError) as error:
                why = str(error)
            finally:
                self.serves.clear()
            if not self._came_up.done():  # It never served: a fault of the setting, which a retry does not cure.
                if (full := full_disk(self._settings.data)) is not None:
                    why = f"{full}, and run the command again. {why}"
                self._enter(State.FAILED, why.partition("\n")[0])
                self._came_up.set_exception(StackError(why))
                return
            if (full := full_disk(self._settings.data)) is not None:
                await self._until_room(f"{full}; {self.process.name} is started again then.\n{why}")
                continue
            now = time.monotonic()
            deaths.append(now)
            while deaths[0] < now - RESTART_WINDOW_S:
                deaths.popleft()
            if len(deaths) > self._settings.max_restarts:
                self._enter(
                    State.FAILED, f"{why}\n{self.process.name} is given up after {len(deaths)} deaths in a minute."
                )
                return
            self._enter(State.RESTARTING, why)
            await asyncio.sleep(backoff_s(len(deaths)))
            self.restarts += 1

    async def _until_room(self, why: str) -> None:
        """Wait for room on the disk: deaths that a full disk causes are not counted."""
        self._enter(State.RESTARTING, why)
        while full_disk(self._settings.data) is not None:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(ROOM_POLL_S)
        self.restarts += 1

    async def _bring_up(self) -> None:
        for need in self.process.needs:
            if need in self._others:
                await self._others[need].serves.wait()
        self._started_at = time.monotonic()
        self.ready_s = None
        self._enter(State.STARTING)
        command = await command_of(self.process, self._settings, self._report)
        with ReadySocket() as ready:
            self._child = Child(replace(command, env={**command.env, **ready.env}), self._log)
            await self._until_serving(self._child, ready)
        self.ready_s = time.monotonic() - self._started_at
        self.serves.set()
        self._enter(State.READY, address(self.process, self._settings) or "")

    async def _until_serving(self, child: Child, socket: ReadySocket) -> None:
        """Raises :class:`StackError` where it ends or takes too long; the child is gone then."""
        ready = self.process.answers(self._settings) if self.process.answers else socket.ready()
        serving, ended = asyncio.ensure_future(ready), asyncio.ensure_future(wait_for_exit(child))
        try:
            await asyncio.wait(
                {serving, ended}, timeout=self._settings.start_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                raise StackError(_died(self.process.name, ended.result(), child))
            if not serving.done():
                raise StackError(
                    f"{self.process.name} did not serve within {self._settings.start_timeout_s:g} s "
                    f"(HEADRACE_START_TIMEOUT_S). The end of {child.log}:\n{child.last_output()}"
                )
            serving.result()
        except BaseException:
            if not ended.cancelled():
                child.kill()
            raise
        finally:
            for task in (serving, ended):
                task.cancel()

    def _on_end_of_supervision(self, task: asyncio.Task[None]) -> None:
        """A fault of our own must not leave a part that looks alive, nor somebody waiting for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._enter(State.FAILED, repr(error))
            if not self._came_up.done():
                self._came_up.set_exception(error)

    def _report(self, message: str) -> None:
        self._enter(State.STARTING, message)

    def _enter(self, state: State, message: str = "") -> None:
        self.state = state
        seconds = time.monotonic() - self._started_at if self._started_at else 0.0
        self._on_progress(StateChange(self.process.name, state, seconds, message))


def _died(name: str, status: int, child: Child) -> str:
    number = status - 128 if status > 128 else -status  # Of the command, or of its lifeline and so of both.
    how = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
    return f"{name} (process {child.pid}) {how}. The end of {child.log}:\n{child.last_output()}"
