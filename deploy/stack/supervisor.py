"""Supervises one process: starts it when the processes that it needs are ready, and restarts it when it dies.

waiting → starting → ready → (it dies) → restarting → starting → …          final states: stopped, failed
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
"""Deaths count towards the limit of restarts for this time, in seconds."""
ROOM_POLL_S = 2.0
"""Interval at which a full disk is checked for free space, in seconds."""
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 8.0


@dataclass(frozen=True, slots=True)
class StateChange:
    """A transition of a process to a state."""

    part: str
    """The process's name."""
    state: State
    """The new state."""
    seconds: float
    """Seconds since its start began; 0 if it has not begun."""
    message: str = ""
    """The address it listens on, or the error with the end of its log."""


def backoff_s(recent_deaths: int) -> float:
    """Returns the pause before the next start in seconds: doubles from half a second to eight."""
    return min(_FIRST_BACKOFF_S * 2.0 ** (recent_deaths - 1), _LONGEST_BACKOFF_S)


class SupervisedProcess:
    """A process of a running stack. Only its supervision task starts the process."""

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
        """Set while the process is ready."""
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
        """The status that ``headrace status`` shows."""
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
        """Start the process and keep it running; returns when it is first ready, or raises :class:`StackError`."""
        if self._task is not None and not self._task.done():
            return
        self._came_up = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.process.name}")
        self._task.add_done_callback(self._on_end_of_supervision)
        await asyncio.shield(self._came_up)

    async def stop(self) -> None:
        """Stop the process without restarting it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._child is not None:
            await stop(self._child, self._settings.stop_grace_s)
            self._child = None
            self._enter(State.STOPPED)

    def kill(self) -> None:
        """Kill the running process with SIGKILL, as a crash would; supervision continues."""
        if self._child is None:
            raise StackError(f"{self.process.name} does not run: its state is {self.state}.")
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
                self._child.kill()  # If its lifeline was killed, some of its descendants may still run.
            except (StackError, OSError) as error:
                why = str(error)
            finally:
                self.serves.clear()
            if not self._came_up.done():  # It was never ready: probably a wrong setting, which a retry cannot fix.
                if (full := full_disk(self._settings.data)) is not None:
                    why = f"{full}, and run the command again. {why}"
                self._enter(State.FAILED, why.partition("\n")[0])
                self._came_up.set_exception(StackError(why))
                return
            if (full := full_disk(self._settings.data)) is not None:
                await self._until_room(f"{full}; {self.process.name} is then restarted.\n{why}")
                continue
            now = time.monotonic()
            deaths.append(now)
            while deaths[0] < now - RESTART_WINDOW_S:
                deaths.popleft()
            if len(deaths) > self._settings.max_restarts:
                self._enter(
                    State.FAILED, f"{why}\n{self.process.name} died {len(deaths)} times in a minute: no more restarts."
                )
                return
            self._enter(State.RESTARTING, why)
            await asyncio.sleep(backoff_s(len(deaths)))
            self.restarts += 1

    async def _until_room(self, why: str) -> None:
        """Wait for free space on the disk; deaths that a full disk causes are not counted."""
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
        """Wait until ``child`` is ready; kills it and raises :class:`StackError` if it exits or takes too long."""
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
                    f"{self.process.name} was not ready within {self._settings.start_timeout_s:g} s "
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
        """Mark the part as failed after a bug in the supervision, and pass the error to the caller of ``start``."""
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
    number = status - 128 if status > 128 else -status  # The signal that killed the command, or its lifeline.
    how = f"was killed by signal {number}" if number > 0 else f"exited with status {status}"
    return f"{name} (process {child.pid}) {how}. The end of {child.log}:\n{child.last_output()}"
