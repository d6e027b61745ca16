"""Shows a configuration's options: as a list, and as a commented TOML file to start from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from json import dumps
from pathlib import Path
from textwrap import wrap
from typing import Any

from headrace.deploy.configuration.described import Option, settable

WIDTH = 110
"""Width of a comment, in characters."""


def as_list(options: Sequence[Option]) -> str:
    """Returns every option with its default, its allowed values and its meaning."""
    return "\n".join(line for option in options for line in _listed(option)) + "\n"


def as_toml(options: Sequence[Option]) -> str:
    """Returns a TOML file of all options, each commented out with its default as the value.

    Tables come after the options of the same level, as TOML requires.
    """
    return "\n".join(_table_lines((), options)).strip() + "\n"


def as_values(options: Sequence[Option]) -> dict[str, dict[str, Any]]:
    """Returns the options by dotted name, for JSON."""
    return {
        option.name: {
            "allowed": option.allowed,
            "default": None if option.table or option.default is None else plain(option.default),
            "required": option.required,
            "about": option.about,
            "choices": dict(option.choices),
        }
        for option in options
    }


def toml_of(configuration: Any, at: tuple[str, ...] = ()) -> str:
    """Returns a configuration's values as TOML, without unset options."""
    values = {field.name: getattr(configuration, field.name) for field in settable(configuration)}
    tables = {name: value for name, value in values.items() if is_dataclass(value)}
    head = [f"[{'.'.join(at)}]"] if at else []
    lines = [
        f"{name} = {toml_value(value)}" for name, value in values.items() if name not in tables and value is not None
    ]
    return "\n\n".join(["\n".join(head + lines), *(toml_of(table, (*at, name)) for name, table in tables.items())])


def toml_value(value: Any) -> str:
    """Returns a value in TOML syntax."""
    value = plain(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{dumps(name)} = {toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value) if isinstance(value, float) else dumps(value, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Returns a value in JSON's types."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return value


def _listed(option: Option) -> Iterator[str]:
    if option.table:
        yield f"[{option.name}]"
    else:
        default = (
            "(required)" if option.required else "(unset)" if option.default is None else toml_value(option.default)
        )
        yield f"{option.name} = {default}    {option.allowed}"
    yield from wrap(option.about, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for value, sentence in option.choices:
        yield from wrap(f"{value}: {sentence}", WIDTH, initial_indent="      ", subsequent_indent="        ")


def _table_lines(at: tuple[str, ...], options: Sequence[Option]) -> Iterator[str]:
    here = [option for option in options if option.path[:-1] == at]
    for option in here:
        if not option.table:
            yield from ("", *_comment(option))
            shown = "" if option.default is None else toml_value(option.default)
            yield f"#{option.path[-1]} = {shown}".rstrip()
    for option in here:
        if option.table:
            # An optional table stays commented out: its mere presence may enable something.
            yield from ("", "", *_comment(option), f"{'#' if option.default is None else ''}[{option.name}]")
            yield from _table_lines(option.path, options)


def _comment(option: Option) -> Iterator[str]:
    state = "required" if option.required else "unset" if option.default is None else ""
    words = ", ".join(filter(None, ["" if option.table else option.allowed, state]))
    yield from wrap(option.about + f" ({words})" * bool(words), WIDTH, initial_indent="# ", subsequent_indent="# ")
    for value, sentence in option.choices:
        yield from wrap(f"{value}: {sentence}", WIDTH, initial_indent="#   ", subsequent_indent="#     ")
