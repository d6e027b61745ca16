"""Reads a configuration from layers: a TOML file, the environment, the command line. For each option the later layer
takes precedence.

    config = read_configuration(TrainerConfig, [toml_layer(Path("run.toml")), set_layer(["kl.coefficient=0.01"])])

Unknown options, values of a wrong type and missing options are all reported, with the place where they were set and the
allowed values.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from headrace.deploy.configuration.described import Option, describe, with_table_defaults
from headrace.deploy.errors import StackError

ConfigT = TypeVar("ConfigT")
OptionPath: TypeAlias = tuple[str, ...]
"""Names of an option's tables and its own name."""
MAX_FILE_BYTES = 1 << 20
"""Largest settings file; a larger file is probably the wrong file."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one source."""

    source: str
    """The source's name for error messages: ``run.toml``, ``--set``."""
    values: Mapping[str, Any]
    """Options by name; tables as mappings."""


def sets(layer: Layer, *path: str) -> bool:
    """Whether ``layer`` has a value for the option at ``path``."""
    found: Any = layer.values
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def toml_layer(file: Path) -> Layer:
    """Returns the file's options. Raises :class:`StackError` if it cannot be read or is not TOML."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise StackError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB and cannot be a settings file.")
        return Layer(str(file), tomllib.loads(file.read_text()))
    except OSError as error:
        raise StackError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StackError(f"{file} is not a TOML file: {error}.") from error


def set_layer(assignments: Sequence[str], source: str = "--set") -> Layer:
    """Returns the options of ``["kl.coefficient=0.01"]``: a value is JSON if it parses as JSON, otherwise text.

    Raises :class:`StackError` if an assignment is not OPTION=VALUE.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *tables, name = path.strip().split(".")
        if not (equals and name and all(tables)):
            raise StackError(
                f"{source} takes OPTION=VALUE, with TABLE.OPTION for an option of a table, not {assignment!r}."
            )
        values = _merged(values, _nested(tables, {name: literal(text)}))
    return Layer(source, values)


def literal(text: str) -> Any:
    """Returns the value of ``text`` if it is JSON, otherwise ``text``."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_configuration(
    make: type[ConfigT], layers: Sequence[Layer], *, strict: bool = True, where: Mapping[str, str] | None = None
) -> ConfigT:
    """Returns the dataclass ``make`` with values from ``layers``; later layers take precedence.

    With ``strict`` values must have their option's type; without it, a text may be converted to a number. ``where``
    tells for a required option where it can be set. Raises :class:`StackError` that lists all errors.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        values = _merged(values, layer.values)
    options = {option.path: option for option in describe(make)}
    unknown = [*_unknown_options(values, options)]
    problems = [_no_such_option(path, _source(path, layers), options) for path in unknown]
    values = with_table_defaults(make, values)
    try:
        adapter = TypeAdapter(make)
        # Validated as JSON: in strict mode a text may then still be a path or an enumeration value, a list a tuple.
        made = adapter.validate_json(json.dumps(values), strict=True) if strict else adapter.validate_python(values)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            problem = _problem(each, _source(each["loc"], layers), options)
            hint = (where or {}).get(".".join(map(str, each["loc"])))
            problems.append(f"{problem} Set it: {hint}." if hint and each["type"].startswith("missing") else problem)
    else:
        if not problems:
            return made
    raise StackError("\n".join(problems))


def _unknown_options(
    values: Mapping[str, Any], options: Mapping[OptionPath, Option], at: OptionPath = ()
) -> Iterator[OptionPath]:
    for name, value in values.items():
        option = options.get((*at, name))
        if option is None:
            yield (*at, name)
        elif option.table and isinstance(value, Mapping):
            yield from _unknown_options(value, options, option.path)


def _problem(problem: Any, source: str, options: Mapping[OptionPath, Option]) -> str:
    """Returns a validation error as a sentence."""
    path = tuple(map(str, problem["loc"]))
    # For an item of a list, the option is the list.
    option = next((options[path[:end]] for end in range(len(path), 0, -1) if path[:end] in options), None)
    if problem["type"].startswith("missing") and path in options:
        return f"{'.'.join(path)} is not set: {options[path].about}"
    if problem["type"] == "value_error":  # Raised by the configuration itself; its message names the option.
        return f"{source}: {str(problem['msg']).removeprefix('Value error, ')}."
    value = json.dumps(problem["input"], default=str, ensure_ascii=False)
    allowed = f"Allowed: {option.allowed}. {option.about}" if option else f"{problem['msg']}."
    return f"{source}: {'.'.join(path)} is {value}. {allowed}"


def _no_such_option(path: OptionPath, source: str, options: Mapping[OptionPath, Option]) -> str:
    *table, name = path
    siblings = [each[-1] for each in options if each[:-1] == tuple(table)]
    elsewhere = {each[-1]: option.name for each, option in options.items()}
    near = get_close_matches(name, siblings, 1)
    near = near or [elsewhere[each] for each in get_close_matches(name, [*elsewhere], 1, 0.8)]
    hint = f" Did you mean {near[0]}?" if near else ""
    within = f" in [{'.'.join(table)}]" if table else ""
    return f"{source}: there is no option {'.'.join(path)}.{hint} Options{within}: {', '.join(siblings)}."


def _source(path: Sequence[str | int], layers: Sequence[Layer]) -> str:
    """Returns the source of the value at ``path``; for the whole configuration all sources except the defaults."""
    sources = [layer.source for layer in layers if _holds(layer.values, [str(step) for step in path])]
    if path:
        return sources[-1] if sources else ""  # A missing option has no source.
    return ", ".join(dict.fromkeys(reversed(sources[1:] or sources)))


def _holds(values: Any, path: Sequence[str]) -> bool:
    if not path:
        return bool(values) if isinstance(values, Mapping) else True
    if isinstance(values, Mapping):
        return path[0] in values and _holds(values[path[0]], path[1:])
    return True  # The path leads into a list, which was set here.


def _nested(tables: Sequence[str], inner: dict[str, Any]) -> dict[str, Any]:
    for table in reversed(tables):
        inner = {table: inner}
    return inner


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of both; ``over`` takes precedence."""
    merged = dict(under)
    for name, value in over.items():
        before = merged.get(name)
        tables = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if tables else value  # type: ignore[arg-type]
    return merged
