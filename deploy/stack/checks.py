"""Checks of ports, memory and disk before anything is started, so that a stack does not fail halfway."""

import shutil
from collections.abc import Iterable

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.system.data_folder import make_folder
from headrace.deploy.system.ports import is_free

_MIB = 1024 * 1024


def check_ports(settings: Settings, processes: Iterable[Process]) -> None:
    """Raise :class:`StackError` if a port that the user chose is taken."""
    chosen: dict[int, str] = {}
    for process in processes:
        for name in process.ports:
            port = getattr(settings, name)
            if port is None:
                continue
            variable = PREFIX + name.upper()
            if not is_free(port):
                raise StackError(
                    f"{process.name} cannot listen on port {port} ({variable}): another process uses it. Choose "
                    "another port, or unset the variable and a free port is chosen."
                )
            if port in chosen:
                raise StackError(f"{chosen[port]} and {variable} are both {port}: choose another port for one of them.")
            chosen[port] = variable


def check_memory(settings: Settings, processes: Iterable[Process]) -> None:
    """Raise :class:`StackError` if less memory is free than the processes need."""
    import psutil

    started = tuple(processes)
    needed = settings.min_free_memory_mb
    if needed is None:
        needed = sum(process.memory_mb for process in started)
    free = psutil.virtual_memory().available // _MIB
    if free < needed:
        sizes = ", ".join(f"{process.name} {process.memory_mb}" for process in started)
        raise StackError(
            f"{needed} MiB of memory are needed, but {free} MiB are free ({sizes}): end other programs, leave out "
            f"parts (--without vllm,trainer,follower), or lower {PREFIX}MIN_FREE_MEMORY_MB."
        )


def check_disk(settings: Settings) -> None:
    """Raise :class:`StackError` if the data folder cannot be written to or has too little free space."""
    make_folder(settings.data)
    free = shutil.disk_usage(settings.data).free // _MIB
    if free < settings.min_free_disk_mb:
        raise StackError(
            f"{settings.data} ({PREFIX}DATA, --data) has {free} MiB free, but {settings.min_free_disk_mb} MiB are "
            f"needed: free some space, use another folder, or lower {PREFIX}MIN_FREE_DISK_MB."
        )
