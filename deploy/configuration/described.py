"""Describes a configuration from its source code: each option's name, type, default and docstring.

A configuration is a frozen dataclass whose fields have a docstring below them; a field may be another such dataclass,
which is a table in TOML. A field that the class computes itself (``init=False``) is not an option. ``headrace settings
trainer``, the commented TOML and error messages use the descriptions.
"""

import ast
import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import to_jsonable_python

_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or a table of options."""

    path: tuple[str, ...]
    """Names of its tables and its own name: ``("kl", "coefficient")``."""
    allowed: str
    """The allowed values, in words: ``number``, ``base or behaviour``."""
    about: str
    """The field's docstring."""
    required: bool
    """Whether it has no default."""
    default: Any
    """The default; ``None`` also for a required option."""
    choices: tuple[tuple[str, str], ...] = ()
    """The values of an enumeration, each with its docstring."""
    table: bool = False
    """Whether it is a table; its options follow it."""

    @property
    def name(self) -> str:
        """The dotted name, as in ``--set``."""
        return ".".join(self.path)


def describe(configuration: type, at: tuple[str, ...] = (), made_with: Any = None) -> Iterator[Option]:
    """Yield every option of the dataclass ``configuration`` in order; a table comes before its options.

    ``made_with`` is an instance of ``configuration`` whose values are the defaults, for a table whose field has a
    default of its own.
    """
    hints = get_type_hints(configuration, include_extras=True)
    docstrings = docstrings_of(configuration)
    for field in settable(configuration):
        made = field.default
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
        if made_with is not None:
            made = getattr(made_with, field.name)
        required = made is dataclasses.MISSING
        path, kind = (*at, field.name), _bare(hints[field.name])
        option = Option(
            path,
            _allowed(kind),
            docstrings.get(field.name, ""),
            required,
            None if required else made,
            _choices(kind),
            _table(kind) is not None,
        )
        yield option
        if (nested := _table(kind)) is not None:
            yield from describe(nested, path, None if required else made)


def with_table_defaults(configuration: type, values: Mapping[str, Any], made_with: Any = None) -> dict[str, Any]:
    """Returns ``values`` of the dataclass ``configuration`` with the missing defaults of tables that are set in part.

    A field may have a table with defaults of its own (a stage's optimiser has other betas than the class), and
    :func:`describe` shows these. Without this function, setting one option of the table would change the others.
    """
    hints = get_type_hints(configuration, include_extras=True)
    filled = dict(values)
    for field in settable(configuration):
        own = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        made = own if made_with is None else getattr(made_with, field.name)
        table = _table(_bare(hints[field.name]))
        if field.name not in values:
            if made_with is not None and made != own:
                filled[field.name] = to_jsonable_python(made)
        elif table is not None and isinstance(values[field.name], Mapping):
            within = None if made is dataclasses.MISSING else made
            filled[field.name] = with_table_defaults(table, values[field.name], within)
    return filled


def docstrings_of(documented: type) -> dict[str, str]:
    """Returns the docstring under each assignment in a class, inherited ones included, on one line, by name."""
    found: dict[str, str] = {}
    for owner in reversed(documented.__mro__[:-1]):
        if owner.__module__ == "enum" or not (dataclasses.is_dataclass(owner) or issubclass(owner, Enum)):
            continue
        (definition,) = ast.parse(dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for before, after in zip(definition.body, definition.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    found[name] = " ".join(text.replace("``", "`").split())
    return found


def settable(configuration: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a configuration, or of its class, that a user may set: those that its constructor takes."""
    return [field for field in dataclasses.fields(configuration) if field.init]


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _members(kind: Any) -> list[Any]:
    """Returns the types of a union without ``None``; the type itself if it is not a union."""
    if get_origin(kind) in (Union, types.UnionType):
        return [_bare(each) for each in get_args(kind) if each is not type(None)]
    return [kind]


def _table(kind: Any) -> type | None:
    """Returns the dataclass of a field of this type, which may be optional; ``None`` for any other type."""
    (only, *others) = _members(kind)
    return only if not others and dataclasses.is_dataclass(only) and isinstance(only, type) else None


def _choices(kind: Any) -> tuple[tuple[str, str], ...]:
    (only, *others) = _members(kind)
    if others or not (isinstance(only, type) and issubclass(only, Enum)):
        return ()
    docstrings = docstrings_of(only)
    return tuple((str(each.value), docstrings.get(each.name, "")) for each in only)


def _allowed(kind: Any) -> str:
    """Returns the values that a type allows, in words."""
    return _either([_word(each) for each in _members(kind)])


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return _either([str(each) for each in get_args(kind)])
    if origin in (tuple, list):
        inner = [each for each in get_args(kind) if each is not Ellipsis]
        counted = f"{len(inner)} × " if origin is tuple and len(inner) == len(get_args(kind)) else ""
        return f"list of {counted}{_either(sorted({_allowed(_bare(each)) for each in inner}))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _either([str(each.value) for each in kind])
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return "table"
    if origin is not None:
        return "table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
