"""Selects the processes and ports of a stack, before anything is started."""

from collections.abc import Collection
from typing import Any

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.options import check_options
from headrace.deploy.processes.process import Process, replaced
from headrace.deploy.processes.registry import PROCESSES
from headrace.deploy.system.ports import remembered_ports


def select(
    processes: tuple[Process, ...], settings: Settings, without: Collection[str]
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Returns the processes to start, and the processes that an external address replaces.

    Raises :class:`StackError` for an unknown name in ``without`` or in the settings' options, for a process whose needs
    are left out, for a wrong option, and for a failed check of a process (a missing base model).
    """
    names = {process.name for process in processes}
    alone = tuple(each for each in PROCESSES if each.configure and not each.in_stack)
    with_options = names | {process.name for process in alone}  # one file may have the options of all processes
    for where, named, known in (
        ("--without", without, names),
        ("--set (HEADRACE_OPTIONS)", settings.options, with_options),
    ):
        if unknown := set(named) - known:
            raise StackError(
                f"{where} names {', '.join(sorted(unknown))}, which is not a part: the parts are "
                f"{', '.join(process.name for process in processes)}."
            )
    external = tuple(process for process in processes if replaced(process, settings))
    available = names - set(without) | {process.name for process in external}
    available -= {each.name for each in processes if each.optional and not available.issuperset(each.needs)}
    started = tuple(
        process
        for process in processes
        if process.name in available and process not in external and process.wanted(settings)
    )
    for process in started:
        for need in process.needs:
            if need not in available:
                also = ",".join([*sorted(without), process.name])
                raise StackError(
                    f"{process.name} needs {need}: leave out {process.name} too (--without {also}), or set "
                    f"{PREFIX}{need.upper()} to the address of an external {need}."
                )
    check_options(settings, (*processes, *alone), {process.name for process in started})
    for process in started:
        process.check(settings)
    return started, external


def options_of_others(settings: Settings, present: Collection[Process]) -> list[str]:
    """Returns the options in ``settings`` of parts that are not ``present``, as PART.OPTION."""
    names = {process.name for process in present}
    return [f"{part}.{option}" for part in sorted(set(settings.options) - names) for option in settings.options[part]]


def resolve(settings: Settings, started: Collection[Process]) -> Settings:
    """Returns ``settings`` with a port for every process in ``started`` and the addresses that result from them."""
    free = tuple(name for process in started for name in process.ports if getattr(settings, name) is None)
    unset = [process for process in started if process.metrics and process.name not in settings.metrics_ports]
    ports = remembered_ports(settings.data / "ports.json", (*free, *(process.metrics_port for process in unset)))
    metrics_ports = {**settings.metrics_ports, **{process.name: ports[process.metrics_port] for process in unset}}
    chosen = {name: getattr(settings, name) or ports[name] for process in started for name in process.ports}
    provided: dict[str, Any] = {}
    for process in started:
        if process.external and process.url:
            provided[process.name] = process.url.format(port=chosen[process.ports[0]])
        provided |= process.provides(settings)
    return settings.model_copy(
        update={**chosen, **provided, "metrics_ports": metrics_ports, "member": settings.member or "local"}
    )
