"""The local stack: starts its parts in parallel as their needs allow, restarts them, and stops all of them at the end.

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
from headrace.deploy.stack.folder_run import forget_run, last_run, remember_run
from headrace.deploy.stack.selection import options_of_others, resolve, select
from headrace.deploy.stack.state import PartStatus, StackState, State, locked, write_state
from headrace.deploy.stack.supervisor import StateChange, SupervisedProcess
from headrace.deploy.system.children import bound_log
from headrace.deploy.system.data_folder import private_files, tighten
from headrace.streams.native.available import NOT_BUILT, SPEEDUPS

_HOUSEKEEPING_S = 10.0
_MIB = 1024 * 1024


def _ignore(message: object) -> None:
    """Do nothing; the default of callbacks."""


class Stack:
    """A running stack, created by :func:`running_stack`."""

    def __init__(
        self,
        settings: Settings,
        started: tuple[Process, ...],
        external: tuple[Process, ...],
        on_progress: Callable[[StateChange], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.settings = settings
        """The settings with all ports and addresses."""
        self._external = external
        self._on_progress = on_progress
        self._on_note = on_note
        self._save_error: int | None = None
        self._ready = False
        self._supervised: dict[str, SupervisedProcess] = {}
        for process in started:
            self._supervised[process.name] = SupervisedProcess(process, settings, self._supervised, self._changed)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses by name: kafka, clickhouse, vllm, dashboard, if they belong to the stack."""
        processes = (*self._external, *(supervised.process for supervised in self._supervised.values()))
        found = {process.name: address(process, self.settings) for process in processes}
        return {name: where for name, where in found.items() if where is not None}

    @property
    def parts(self) -> Mapping[str, PartStatus]:
        """The state of every part, by name."""
        external = {
            process.name: PartStatus(State.EXTERNAL, address(process, self.settings), None, 0, None, None)
            for process in self._external
        }
        return external | {name: supervised.status for name, supervised in self._supervised.items()}

    async def start_part(self, name: str) -> None:
        """Start a stopped or failed part; returns when it is ready. Raises :class:`StackError` if it does not start."""
        await self._part(name).start()

    async def stop_part(self, name: str) -> None:
        """Stop a part without restarting it. Parts that need it keep running."""
        await self._part(name).stop()

    def kill_part(self, name: str) -> None:
        """Kill a part's process with SIGKILL; it is restarted as after any crash."""
        self._part(name).kill()

    def _part(self, name: str) -> SupervisedProcess:
        if name not in self._supervised:
            raise StackError(f"This stack does not run {name}; its parts are {', '.join(self._supervised)}.")
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
        """Report the error once; a full disk must not end the supervision, but other shells then see an old state."""
        if error.errno != self._save_error:
            self._save_error = error.errno
            self._on_note(f"{self.settings.data}/stack.json could not be written: {error.strerror}.")

    async def _start(self) -> None:
        for process in self._external:
            assert process.external is not None  # select() checked it.
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
        """Stop all parts, each after those that need it."""
        left = dict(self._supervised)
        while left:
            needed = {need for supervised in left.values() for need in supervised.process.needs}
            leaves = [left.pop(name) for name in set(left) - needed]
            await asyncio.gather(*(leaf.stop() for leaf in leaves))

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            for name in self._supervised:
                with contextlib.suppress(OSError):  # The disk may be full: try again at the next pass.
                    bound_log(self.settings.logs / f"{name}.log", self.settings.max_log_mb * _MIB)


@asynccontextmanager
async def running_stack(
    settings: Settings,
    without: Collection[str] = (),
    on_progress: Callable[[StateChange], None] = _ignore,
    processes: tuple[Process, ...] | None = None,
    on_note: Callable[[str], None] = _ignore,
) -> AsyncIterator[Stack]:
    """Start the stack, run it inside the block and stop it at the end of the block, whatever ends the block.

    Only the owner has access to the files in the data folder; ``on_note`` receives a sentence about files whose
    permissions were changed, about a C++ module that was not built, about options of parts that are left out, and about
    errors that do not end the stack. Inside the block the process's umask is 077.
    ``processes`` are the processes to select from; ``None``: those of the registry.

    Raises :class:`StackError` if a setting is wrong, something is missing, another stack uses the data folder, or a
    part does not start; all parts that were started are stopped first.
    """
    started, external = select(stack_processes() if processes is None else processes, settings, without)
    check_disk(settings)
    with private_files(), locked(settings.data):
        if tightened := tighten(settings.data):
            on_note(f"Removed other users' access to {tightened:,} files and folders in {settings.data}.")
        if SPEEDUPS is None and any(process.native for process in started):
            on_note(NOT_BUILT)
        if idle := options_of_others(settings, (*started, *external)):
            on_note(f"Options of parts that this stack does not run: {', '.join(idle)}.")
        check_ports(settings, started)
        check_memory(settings, started)
        for prepare in dict.fromkeys(process.prepare for process in started):  # Once if several processes share it.
            prepare(settings)
        is_first = last_run(settings.data) is None
        remember_run(settings.data, settings.run)
        stack = Stack(resolve(settings, started), started, external, on_progress, on_note)
        housekeeping = asyncio.create_task(stack._bound_logs())
        try:
            try:
                await stack._start()
            except StackError:
                if is_first and settings.run == Settings.model_fields["run"].default:
                    forget_run(settings.data)
                raise
            yield stack
        finally:
            housekeeping.cancel()
            await stack._stop()
