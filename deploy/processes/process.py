"""A process of headrace as one value; every list, help text and check of processes is derived from these values.

The modules of the values import nothing heavy, so that ``headrace --help`` is fast: the functions of a value import
what the process needs to run.
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
"""Shows the user what a process does while it starts."""


def _always(settings: "Settings") -> bool:
    return True


def _nothing_to_check(settings: "Settings") -> None:
    pass


def _no_settings(settings: "Settings") -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Flow:
    """The topics of a process. ``reads`` does not contain its own output, which some processes read at a restart."""

    reads: tuple["Topic", ...] = ()
    """Topics that it consumes."""
    writes: tuple["Topic", ...] = ()
    """Topics that it writes to."""

    @property
    def topics(self) -> tuple["Topic", ...]:
        """All topics, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


@dataclass(frozen=True, slots=True)
class Process:
    """A process: a worker of headrace, or another program that the stack starts."""

    name: str
    """Its name in settings, options, status, logs and ``headrace worker``."""
    about: str
    """What it does, in a few words for the help."""
    flow: Callable[[], Flow] = Flow
    """Returns the topics that it reads and writes."""
    feeds: tuple[tuple[str, str], ...] = ()
    """Connections to other processes or to agents without a topic: name and verb, for the flowchart."""

    run: Callable[["Settings"], int] | None = None
    """Runs it in the current process until SIGTERM and returns the exit status (``headrace worker NAME``); ``None``:
    it is another program, which ``command`` specifies."""
    command: Callable[["Settings", ReportStatus], Awaitable[Command]] | None = None
    """Prepares its files and returns the program that the stack starts; ``None``: ``headrace worker``."""
    settings: tuple[str, ...] = ()
    """Addresses and ports that its worker needs when it runs without a stack."""

    in_stack: bool = True
    """Whether ``headrace up`` includes it; workers that only replace other workers in a cluster are not included."""
    wanted: Callable[["Settings"], bool] = _always
    """Whether the settings require it in a stack; ``--without`` can still leave it out."""
    needs: tuple[str, ...] = ()
    """Processes that must be ready before it starts."""
    optional: bool = False
    """Whether it is left out together with a process that it needs; otherwise that is an error."""
    check: Callable[["Settings"], None] = _nothing_to_check
    """Raises ``StackError`` if something that it reads is missing. Called before anything is started."""
    prepare: Callable[["Settings"], None] = _nothing_to_check
    """Creates what several processes share, before any of them is started; raises ``StackError``."""
    answers: Callable[["Settings"], Awaitable[None]] | None = None
    """Returns once the process is ready; ``None``: it signals readiness itself, by sd_notify."""
    memory_mb: int = 150
    """Expected resident memory in MiB."""
    native: bool = False
    """Whether it processes events with the C++ module."""
    extra: str | None = None
    """The extra of headrace with the packages that it needs in addition to those of ``local``."""

    ports: tuple[str, ...] = ()
    """Settings that contain the ports it listens on."""
    url: str | None = None
    """Its address, with ``{port}`` for the first of ``ports``; ``None`` if no other process connects to it."""
    external: Callable[["Settings"], Awaitable[None]] | None = None
    """Checks the external address in the setting with the process's name, which replaces the process; ``None``: it
    cannot be replaced."""
    provides: Callable[["Settings"], Mapping[str, Any]] = _no_settings
    """Returns additional settings for the other processes of a stack that starts this one."""
    metrics: bool = False
    """Whether it answers Prometheus, on a port of its own in the setting ``metrics_ports``."""

    configuration: str | None = None
    """The class of its options, ``module:Class``, which ``headrace settings NAME`` shows; ``None``: not shown."""
    configure: Callable[["Settings"], object] | None = None
    """Creates its configuration in order to check its options; ``None``: it has no options. Raises ``StackError``."""

    @property
    def metrics_port(self) -> str:
        """The name under which its metrics port is remembered."""
        return f"{self.name}_metrics_port"


def replaced(process: Process, settings: "Settings") -> bool:
    """Whether the settings contain an external address that replaces ``process``."""
    return process.external is not None and getattr(settings, process.name) is not None


def address(process: Process, settings: "Settings") -> str | None:
    """Returns the address of ``process`` in resolved ``settings``."""
    if replaced(process, settings):
        return str(getattr(settings, process.name))
    return process.url.format(port=getattr(settings, process.ports[0])) if process.url else None


def metrics_address(process: Process, settings: "Settings") -> str | None:
    """Returns the address at which ``process`` answers Prometheus, from resolved ``settings``."""
    return metrics_url(settings.metrics_ports[process.name]) if process.metrics else None


async def command_of(process: Process, settings: "Settings", report: ReportStatus) -> Command:
    """Prepare the files of ``process``; returns the program that the stack starts for it."""
    if process.command is not None:
        return await process.command(settings, report)
    return Command((sys.executable, "-m", "headrace.deploy.cli", "worker", process.name), settings.environment())
