"""A configuration read from layers: a TOML file, the environment, the command line. The later layer wins, by option.

    config = read_configuration(TrainerConfig, [toml_layer(Path("run.toml")), set_layer(["kl.coefficient=0.01"])])

Nothing is guessed: an option that does not exist, a value of another type and a missing one are each named, with where
they were set and what is allowed.
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
"""Where an option stands."""
MAX_FILE_BYTES = 1 << 20
"""A file of settings beyond this is something else."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one place."""

    source: str
    """The place, as an error names it: ``run.toml``, ``--set``."""
    values: Mapping[str, Any]
    """Options by name; tables as mappings."""


def sets(layer: Layer, *path: str) -> bool:
    """Whether ``layer`` has a value for the option at ``path``, through its tables."""
    found: Any = layer.values
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def toml_layer(file: Path) -> Layer:
    """The file's options. Raises :class:`StackError` where it cannot be read or is no TOML."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise StackError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB: that is no file of settings.")
        return Layer(str(file), tomllib.loads(file.read_text()))
    except OSError as error:
        raise StackError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StackError(f"{file} is no TOML: {error}.") from error


def set_layer(assignments: Sequence[str], source: str = "--set") -> Layer:
    """``["kl.coefficient=0.01"]``: values are JSON where they parse as JSON, else text.

    Raises :class:`StackError` where an assignment is not OPTION=VALUE.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *tables, name = path.strip().split(".")
        if not (equals and name and all(tables)):
            raise StackError(
                f"{source} takes OPTION=VALUE, with a dot before an option of a table, not {assignment!r}."
            )
        values = _merged(values, _nested(tables, {name: literal(text)}))
    return Layer(source, values)


def literal(text: str) -> Any:
    """``text`` as JSON where it is JSON, else as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_configuration(
    make: type[ConfigT], layers: Sequence[Layer], *, strict: bool = True, where: Mapping[str, str] | None = None
) -> ConfigT:
    """The dataclass ``make`` filled from ``layers``, a later one over an earlier.

    ``strict``: values must have their option's type; otherwise a text that says a number is one. ``where`` says of a
    needed option where people set it. Raises :class:`StackError` naming everything that is wrong.
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
        # As JSON, so that strictness still lets a text be a path or a choice, and a list a tuple.
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
    """One thing that is wrong, as a person would put it."""
    path = tuple(map(str, problem["loc"]))
    # Of an item of a list it is the list that has a description.
    option = next((options[path[:end]] for end in range(len(path), 0, -1) if path[:end] in options), None)
    if problem["type"].startswith("missing") and path in options:
        return f"{'.'.join(path)} is not set: {options[path].about}"
    if problem["type"] == "value_error":  # The configuration refused, and names the option in its own words.
        return f"{source}: {str(problem['msg']).removeprefix('Value error, ')}."
    value = json.dumps(problem["input"], default=str, ensure_ascii=False)
    allowed = f"Allowed: {option.allowed}. {option.about}" if option else f"{problem['msg']}."
    return f"{source}: {'.'.join(path)} is {value}. {allowed}"


def _no_such_option(path: OptionPath, source: str, options: Mapping[OptionPath, Option]) -> str:
    *table, name = path
    beside = [each[-1] for each in options if each[:-1] == tuple(table)]
    elsewhere = {each[-1]: option.name for each, option in options.items()}
    near = get_close_matches(name, beside, 1) or [elsewhere[it] for it in get_close_matches(name, [*elsewhere], 1, 0.8)]
    meant = f" Did you mean {near[0]}?" if near else ""
    among = f"in [{'.'.join(table)}] there are" if table else "there are"
    return f"{source}: there is no option {'.'.join(path)}.{meant} Options {among}: {', '.join(beside)}."


def _source(path: Sequence[str | int], layers: Sequence[Layer]) -> str:
    """Where the value at ``path`` was set. Of the configuration as a whole: all places but the first, the defaults."""
    said = [layer.source for layer in layers if _holds(layer.values, [str(step) for step in path])]
    if path:
        return said[-1] if said else ""  # what is missing was set nowhere
    return ", ".join(dict.fromkeys(reversed(said[1:] or said)))


def _holds(values: Any, path: Sequence[str]) -> bool:
    if not path:
        return bool(values) if isinstance(values, Mapping) else True
    if isinstance(values, Mapping):
        return path[0] in values and _holds(values[path[0]], path[1:])
    return True  # an item of a list: the list was set here


def _nested(tables: Sequence[str], inner: dict[str, Any]) -> dict[str, Any]:
    for table in reversed(tables):
        inner = {table: inner}
    return inner


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, ``over`` winning option by option."""
    both = dict(under)
    for name, value in over.items():
        beneath = both.get(name)
        tables = isinstance(beneath, Mapping) and isinstance(value, Mapping)
        both[name] = _merged(beneath, value) if tables else value  # type: ignore[arg-type]
    return both
