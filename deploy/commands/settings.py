"""``headrace settings``: every setting, what it is now and what it means."""

import click

from headrace.deploy.processes.registry import configurations
from headrace.deploy.terminal import tell, tell_json, tell_page
from headrace.schemas.safe_text import redacted_values

CONFIGURATIONS = configurations() | {"fine-tuning": "headrace.trainer.supervised.settings:StageConfig"}
"""Parts with options of their own, and where these are declared; fine-tuning is ``headrace sft`` and ``rft``."""

_HELP = f"""Print every setting of stack and workers: variable, value, meaning; or every option of PART.

Parts are {", ".join(CONFIGURATIONS)} (sft and rft).

\b
headrace settings                          what HEADRACE_* variables there are, and what they are now
headrace settings trainer                  every option of the trainer, its default and meaning
headrace settings trainer --toml           the same as a file to start from (headrace train --config)
"""


@click.command("settings", help=_HELP)
@click.argument("part", required=False, type=click.Choice([*CONFIGURATIONS]), metavar="[PART]")
@click.option("--data", type=click.Path(file_okay=False), help="As other commands take it (HEADRACE_DATA).")
@click.option("--toml", "as_toml_file", is_flag=True, help="The options of PART as a commented TOML file.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(part: str | None, data: str | None, as_toml_file: bool, as_json: bool) -> None:
    """Print all settings, or the options of ``part``."""
    if part is not None:
        _show_part(part, as_toml_file, as_json)
    elif as_toml_file:
        raise click.UsageError("--toml shows the options of a PART: headrace settings trainer --toml")
    else:
        _show_settings(data, as_json)


def _show_part(part: str, as_toml_file: bool, as_json: bool) -> None:
    from importlib import import_module

    from headrace.deploy.configuration.described import describe
    from headrace.deploy.configuration.shown import as_list, as_toml, as_values

    module, _, name = CONFIGURATIONS[part].partition(":")
    options = [*describe(getattr(import_module(module), name))]
    if as_json:
        tell_json(as_values(options), indent=1)
    else:
        tell_page(as_toml(options) if as_toml_file else as_list(options))


def _show_settings(data: str | None, as_json: bool) -> None:

    from headrace.deploy.configuration.settings import PREFIX, Settings, load_settings

    values = redacted_values(load_settings(data=data).model_dump(mode="json"))
    if as_json:
        tell_json(values, indent=1)
        return
    for name, field in Settings.model_fields.items():
        value = values[name]
        tell(f"{PREFIX}{name.upper()}={'' if value is None else value}")
        tell(f"    {' '.join((field.description or '').split())}")
