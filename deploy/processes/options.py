"""Checks the options of all processes before any of them is started."""

from collections.abc import Collection

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.system.ports import HOST


def check_options(settings: Settings, processes: Collection[Process], started: Collection[str]) -> None:
    """Create the configuration of each process that is named in ``started`` and has an option set, with placeholders
    for addresses that are known only after a start. A process without options refuses any, started or not.

    Raises :class:`StackError` that names every unknown or wrong option.
    """
    by_name = {process.name: process for process in processes}
    if unknown := sorted(set(settings.options) - set(by_name)):
        with_options = ", ".join(process.name for process in processes if process.configure)
        raise StackError(
            f"--set (HEADRACE_OPTIONS) names {', '.join(unknown)}, which is not a part: the parts with options are "
            f"{with_options}."
        )
    complete = _with_addresses(settings, processes)
    problems = []
    for name in sorted(settings.options):
        configure = by_name[name].configure
        if not settings.options[name]:
            continue
        if configure is None:
            problems.append(f"--set (HEADRACE_OPTIONS): {name} has no options, only settings: `headrace settings`.")
        elif name in started:
            try:
                configure(complete)
            except StackError as error:
                problems.append(str(error))
    if problems:
        raise StackError("\n".join(problems))


def _with_addresses(settings: Settings, processes: Collection[Process]) -> Settings:
    """Returns ``settings`` with a placeholder for every address and port that is not known yet."""
    assumed: dict[str, str | int] = {"otlp": f"http://{HOST}:1"}
    for process in processes:
        assumed |= dict.fromkeys(process.ports, 1)
        if process.external and process.url:
            assumed[process.name] = process.url.format(port=1)
    return settings.model_copy(
        update={name: value for name, value in assumed.items() if getattr(settings, name) is None}
    )
