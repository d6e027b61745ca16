"""A process of headrace as one value: every list, help text and check of processes is made of these.

Values live in modules that import nothing heavy, so that ``headrace --help`` answers at once: what a process needs to
run is imported by the functions of its value.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.deploy.system.children import Command
from headrace.deploy.system.ports import metrics_url

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.schemas.topics import Topic

ReportStatus: TypeAlias = Callable[[str], None]
"""Shows a person what a process is busy with while it starts."""


def _always(settings: "Settings") -> bool:
    return True


def _nothing_to_check(settings: "Settings") -> None:
    pass


def _no_settings(settings: "Settings") -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Flow:
    """The topics of a process. Its own output, which some read again after a restart, is not among ``reads``."""

    reads: tuple["Topic", ...] = ()
    """Topics whose records it takes."""
    writes: tuple["Topic", ...] = ()
    """Topics that it writes to."""

    @property
    def topics(self) -> tuple["Topic", ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


@dataclass(frozen=True, slots=True)
class Process:
    """A process: a worker of ours, or a program of others that the stack starts."""

    name: str
    """Its name in settings, options, status, logs and ``headrace worker``."""
    about: str
    """What it does, in a few words for the help."""
    flow: Callable[[], Flow] = Flow
    """Gives the topics that it reads and writes."""
    feeds: tuple[tuple[str, str], ...] = ()
    """What it does to other processes, or to agents, without a topic: name and verb, for the drawing."""

    run: Callable[["Settings"], int] | None = None
    """Runs it in this process until SIGTERM and returns the exit status (``headrace worker NAME``); ``None``: it is a
    program of others, which ``command`` gives."""
    command: Callable[["Settings", ReportStatus], Awaitable[Command]] | None = None
    """Prepares what it needs on disk and gives the program that the stack starts; ``None``: ``headrace worker``."""
    settings: tuple[str, ...] = ()
    """Addresses and ports that its worker is given where it runs without a stack."""

    in_stack: bool = True
    """Whether ``headrace up`` knows it; a worker that only takes the place of others in a cluster is not in it."""
    wanted: Callable[["Settings"], bool] = _always
    """Whether the settings call for it in a stack that does not leave it out."""
    needs: tuple[str, ...] = ()
    """Processes that must serve before it starts."""
    check: Callable[["Settings"], None] = _nothing_to_check
    """Raises ``StackError`` where something that it reads is not there. Called before anything is started."""
    prepare: Callable[["Settings"], None] = _nothing_to_check
    """Makes what several processes share, before any of them is started; raises ``StackError``."""
    answers: Callable[["Settings"], Awaitable[None]] | None = None
    """Returns once it serves; ``None``: it signals that itself, by sd_notify."""
    memory_mb: int = 150
    """Resident memory to reckon with, in MiB."""

    ports: tuple[str, ...] = ()
    """Settings that hold the ports it listens on."""
    url: str | None = None
    """Its address, ``{port}`` being the first of ``ports``; ``None`` where nobody connects to it."""
    external: Callable[["Settings"], Awaitable[None]] | None = None
    """Checks the address in the setting called like the process, which replaces it; ``None``: nothing replaces it."""
    provides: Callable[["Settings"], Mapping[str, Any]] = _no_settings
    """Further settings that hold for the others where the stack starts it."""
    metrics: bool = False
    """Whether it answers Prometheus, on a port of its own in the setting ``metrics_ports``."""

    configuration: str | None = None
    """The class of its options, ``module:Class``, which ``headrace settings NAME`` shows; ``None``: not shown."""
    configure: Callable[["Settings"], object] | None = None
    """Makes its configuration, only to see whether its options are right; ``None``: it has no options. Raises
    ``StackError``."""

    @property
    def metrics_port(self) -> str:
        """What the port of its metrics is remembered as."""
        return f"{self.name}_metrics_port"


def replaced(process: Process, settings: "Settings") -> bool:
    """Whether the settings hold an address to use in the place of ``process``."""
    return process.external is not None and getattr(settings, process.name) is not None


def address(process: Process, settings: "Settings") -> str | None:
    """Where ``process`` listens, by resolved ``settings``."""
    if replaced(process, settings):
        return str(getattr(settings, process.name))
    return process.url.format(port=getattr(settings, process.ports[0])) if process.url else None


def metrics_address(process: Process, settings: "Settings") -> str | None:
    """Where ``process`` answers Prometheus, by resolved ``settings``."""
    return metrics_url(settings.metrics_ports[process.name]) if process.metrics else None


async def command_of(process: Process, settings: "Settings", report: ReportStatus) -> Command:
    """The program that the stack starts for ``process``, what it needs on disk being prepared."""
    if process.command is not None:
        return await process.command(settings, report)
    return Command((sys.executable, "-m", "headrace.deploy.cli", "worker", process.name), settings.environment())
