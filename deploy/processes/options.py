"""A look at the options of all processes before any of them is started."""

from collections.abc import Collection

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.system.ports import HOST


def check_options(settings: Settings, processes: Collection[Process], started: Collection[str]) -> None:
    """Make the configuration of each of ``processes`` that is named in ``started`` and that somebody set an option of,
    addresses assumed where they follow from a start. A process without options refuses any, started or not.

    Raises :class:`StackError` naming every option that is unknown or wrong.
    """
    by_name = {process.name: process for process in processes}
    if unknown := sorted(set(settings.options) - set(by_name)):
        with_options = ", ".join(process.name for process in processes if process.configure)
        raise StackError(
            f"--set (HEADRACE_OPTIONS) names {', '.join(unknown)}, which is no part: the parts with options are "
            f"{with_options}."
        )
    there = _with_addresses(settings, processes)
    problems = []
    for name in sorted(settings.options):
        configure = by_name[name].configure
        if not settings.options[name]:
            continue
        if configure is None:
            problems.append(f"--set (HEADRACE_OPTIONS): {name} has no options, only settings: `headrace settings`.")
        elif name in started:
            try:
                configure(there)
            except StackError as error:
                problems.append(str(error))
    if problems:
        raise StackError("\n".join(problems))


def _with_addresses(settings: Settings, processes: Collection[Process]) -> Settings:
    """``settings`` with an address and a port wherever there is none yet."""
    assumed: dict[str, str | int] = {"otlp": f"http://{HOST}:1"}
    for process in processes:
        assumed |= dict.fromkeys(process.ports, 1)
        if process.external and process.url:
            assumed[process.name] = process.url.format(port=1)
    return settings.model_copy(
        update={name: value for name, value in assumed.items() if getattr(settings, name) is None}
    )
