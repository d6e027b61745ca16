"""Which processes a stack starts, and on which ports: decided before anything is started."""

from collections.abc import Collection
from typing import Any

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.options import check_options
from headrace.deploy.processes.process import Process, replaced
from headrace.deploy.system.ports import remembered_ports


def select(
    processes: tuple[Process, ...], settings: Settings, without: Collection[str]
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Processes to start, and processes that an address replaces.

    Raises :class:`StackError` for an unknown name, in ``without`` or in the settings' options, for a process whose
    needs are left out, for an option that is wrong, and where there is no model: all that is known before a start.
    """
    names = {process.name for process in processes}
    for where, named in (("--without", without), ("--set (HEADRACE_OPTIONS)", settings.options)):
        if unknown := set(named) - names:
            raise StackError(
                f"{where} names {', '.join(sorted(unknown))}, which is no part: the parts are "
                f"{', '.join(process.name for process in processes)}."
            )
    external = tuple(process for process in processes if replaced(process, settings))
    there = names - set(without) | {process.name for process in external}
    started = tuple(
        process
        for process in processes
        if process.name in there and process not in external and process.wanted(settings)
    )
    for process in started:
        for need in process.needs:
            if need not in there:
                also = ",".join([*sorted(without), process.name])
                raise StackError(
                    f"{process.name} needs {need}: leave it out too (--without {also}), or set {PREFIX}{need.upper()} "
                    "to the address of one that you have."
                )
    check_options(settings, processes, {process.name for process in started})
    for process in started:
        process.check(settings)
    return started, external


def resolve(settings: Settings, started: Collection[Process]) -> Settings:
    """``settings`` with a port for every process in ``started`` and the addresses that follow from them."""
    free = tuple(name for process in started for name in process.ports if getattr(settings, name) is None)
    unwatched = [process for process in started if process.metrics and process.name not in settings.metrics_ports]
    ports = remembered_ports(settings.data / "ports.json", (*free, *(process.metrics_port for process in unwatched)))
    metrics_ports = {**settings.metrics_ports, **{process.name: ports[process.metrics_port] for process in unwatched}}
    chosen = {name: getattr(settings, name) or ports[name] for process in started for name in process.ports}
    provided: dict[str, Any] = {}
    for process in started:
        if process.external and process.url:
            provided[process.name] = process.url.format(port=chosen[process.ports[0]])
        provided |= process.provides(settings)
    return settings.model_copy(
        update={**chosen, **provided, "metrics_ports": metrics_ports, "member": settings.member or "local"}
    )
