"""The local stack: every part brought up side by side as its needs allow, kept up, and taken down with nothing left.

async with running_stack(load_settings(), on_progress=print) as stack:
    ...                                   # stack.addresses["kafka"], stack.kill_part("sink")
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process, address
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.checks import check_disk, check_memory, check_ports
from headrace.deploy.stack.selection import resolve, select
from headrace.deploy.stack.state import PartStatus, StackState, State, locked, write_state
from headrace.deploy.stack.supervisor import StateChange, SupervisedProcess
from headrace.deploy.system.children import bound_log
from headrace.deploy.system.data_folder import private_files, tighten

_HOUSEKEEPING_S = 10.0
_MIB = 1024 * 1024


def _ignore(message: object) -> None:
    """Does nothing: the default of callbacks."""


class Stack:
    """A stack that runs. Made by :func:`running_stack`."""

    def __init__(
        self,
        settings: Settings,
        started: tuple[Process, ...],
        external: tuple[Process, ...],
        on_progress: Callable[[StateChange], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.settings = settings
        """With every port and address filled in."""
        self._external = external
        self._on_progress = on_progress
        self._on_note = on_note
        self._trouble: int | None = None
        self._ready = False
        self._supervised: dict[str, SupervisedProcess] = {}
        for process in started:
            self._supervised[process.name] = SupervisedProcess(process, settings, self._supervised, self._changed)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where things are: kafka, clickhouse, vllm, dashboard, as far as they are part of it."""
        processes = (*self._external, *(supervised.process for supervised in self._supervised.values()))
        found = {process.name: address(process, self.settings) for process in processes}
        return {name: where for name, where in found.items() if where is not None}

    @property
    def parts(self) -> Mapping[str, PartStatus]:
        """Every part's state, by name."""
        external = {
            process.name: PartStatus(State.EXTERNAL, address(process, self.settings), None, 0, None, None)
            for process in self._external
        }
        return external | {name: supervised.status for name, supervised in self._supervised.items()}

    async def start_part(self, name: str) -> None:
        """Start a stopped or failed part; returns when it serves. Raises :class:`StackError` if it does not."""
        await self._part(name).start()

    async def stop_part(self, name: str) -> None:
        """End a part and leave it ended. What needs it stays up and does without."""
        await self._part(name).stop()

    def kill_part(self, name: str) -> None:
        """``kill -9`` of a part's process; it is started again as after any accident."""
        self._part(name).kill()

    def _part(self, name: str) -> SupervisedProcess:
        if name not in self._supervised:
            raise StackError(f"{name} is not started by this stack, which has {', '.join(self._supervised)}.")
        return self._supervised[name]

    def _changed(self, progress: StateChange) -> None:
        self._save()
        self._on_progress(progress)

    def _save(self) -> None:
        state = StackState(
            pid=os.getpid(),
            run=self.settings.run,
            data=str(self.settings.data),
            store_url=self.settings.objects,
            ready=self._ready,
            parts=dict(self.parts),
        )
        try:
            write_state(self.settings.data, state)
        except OSError as error:
            self._not_saved(error)

    def _not_saved(self, error: OSError) -> None:
        """A disk that is full must not end the supervision: other shells see an older state until there is room."""
        if error.errno != self._trouble:
            self._trouble = error.errno
            self._on_note(f"{self.settings.data}/stack.json could not be written: {error.strerror}.")

    async def _start(self) -> None:
        for process in self._external:
            assert process.external is not None  # select() found it so.
            await process.external(self.settings)
            self._on_progress(StateChange(process.name, State.EXTERNAL, 0.0, address(process, self.settings) or ""))
        starts = [asyncio.create_task(process.start()) for process in self._supervised.values()]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
        self._ready = True
        self._save()

    async def _stop(self) -> None:
        """End everything, each part after those that need it."""
        left = dict(self._supervised)
        while left:
            needed = {need for supervised in left.values() for need in supervised.process.needs}
            leaves = [left.pop(name) for name in set(left) - needed]
            await asyncio.gather(*(leaf.stop() for leaf in leaves))

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            for name in self._supervised:
                with contextlib.suppress(OSError):  # The disk is full: again when there is room.
                    bound_log(self.settings.logs / f"{name}.log", self.settings.max_log_mb * _MIB)


@asynccontextmanager
async def running_stack(
    settings: Settings,
    without: Collection[str] = (),
    on_progress: Callable[[StateChange], None] = _ignore,
    processes: tuple[Process, ...] | None = None,
    on_note: Callable[[str], None] = _ignore,
) -> AsyncIterator[Stack]:
    """Bring the stack up, keep it up inside the block, take it down at its end, however that comes.

    Everything in the data folder is its owner's alone; ``on_note`` gets a sentence about files that were not, and about
    faults that do not end the stack. Inside the block the process's umask is 077. ``processes`` are all that the stack
    knows; ``None``: those of the registry.

    Raises :class:`StackError` where a setting is wrong, something is missing, another stack has the data folder, or a
    part does not come up; whatever had been started is gone by then.
    """
    started, external = select(stack_processes() if processes is None else processes, settings, without)
    check_disk(settings)
    with private_files(), locked(settings.data):
        if tightened := tighten(settings.data):
            on_note(f"Took the rights of other users from {tightened:,} files and folders in {settings.data}.")
        check_ports(settings, started)
        check_memory(settings, started)
        for prepare in dict.fromkeys(process.prepare for process in started):  # once where several share it
            prepare(settings)
        stack = Stack(resolve(settings, started), started, external, on_progress, on_note)
        housekeeping = asyncio.create_task(stack._bound_logs())
        try:
            await stack._start()
            yield stack
        finally:
            housekeeping.cancel()
            await stack._stop()
