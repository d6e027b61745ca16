"""``headrace settings``: every setting with its current value and its meaning."""

import click

from headrace.deploy.processes.registry import configurations
from headrace.deploy.terminal import print_json, print_line, print_text
from headrace.schemas.safe_text import redacted_values

CONFIGURATIONS = configurations() | {"fine-tuning": "headrace.trainer.supervised.settings:StageConfig"}
"""Parts that have options, with the classes that declare these; fine-tuning is ``headrace sft`` and ``rft``."""

_HELP = f"""Print every setting with its value and meaning, or every option of PART.

Settings are HEADRACE_* variables of the stack and the workers. Parts are {", ".join(CONFIGURATIONS)} (sft and rft).

\b
headrace settings                          all HEADRACE_* variables with their current values
headrace settings trainer                  every option of the trainer, its default and meaning
headrace settings trainer --toml           the same as a file to start from (headrace train --config)
"""


@click.command("settings", help=_HELP)
@click.argument("part", required=False, type=click.Choice([*CONFIGURATIONS]), metavar="[PART]")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder (HEADRACE_DATA).")
@click.option("--toml", "as_toml_file", is_flag=True, help="Print the options of PART as a commented TOML file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(part: str | None, data: str | None, as_toml_file: bool, as_json: bool) -> None:
    """Print all settings, or the options of ``part``."""
    if part is not None:
        _show_part(part, as_toml_file, as_json)
    elif as_toml_file:
        raise click.UsageError("--toml needs a PART, for example: headrace settings trainer --toml")
    else:
        _show_settings(data, as_json)


def _show_part(part: str, as_toml_file: bool, as_json: bool) -> None:
    from importlib import import_module

    from headrace.deploy.configuration.described import describe
    from headrace.deploy.configuration.shown import as_list, as_toml, as_values

    module, _, name = CONFIGURATIONS[part].partition(":")
    options = [*describe(getattr(import_module(module), name))]
    if as_json:
        print_json(as_values(options), indent=1)
    else:
        print_text(as_toml(options) if as_toml_file else as_list(options))


def _show_settings(data: str | None, as_json: bool) -> None:

    from headrace.deploy.configuration.settings import PREFIX, Settings, load_settings

    values = redacted_values(load_settings(data=data).model_dump(mode="json"))
    if as_json:
        print_json(values, indent=1)
        return
    for name, field in Settings.model_fields.items():
        value = values[name]
        print_line(f"{PREFIX}{name.upper()}={'' if value is None else value}")
        print_line(f"    {' '.join((field.description or '').split())}")
