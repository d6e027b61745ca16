"""A configuration described from its own source: each option's name, type, default, and the sentence under it.

A configuration is a frozen dataclass whose fields carry a sentence as a string below them; a field may be another such
dataclass, in TOML a table. ``headrace settings trainer``, the commented TOML and the words of errors come from here.
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
    """Where it stands: ``("kl", "coefficient")``."""
    allowed: str
    """What it takes, in words: ``number``, ``base or behaviour``."""
    about: str
    """The sentence under the field."""
    required: bool
    """Whether there is no default."""
    default: Any
    """The default; ``None`` also where it is required."""
    choices: tuple[tuple[str, str], ...] = ()
    """Of an enumeration: every value with its sentence."""
    table: bool = False
    """Whether it is a table: its options follow it."""

    @property
    def name(self) -> str:
        """Dotted, as ``--set`` takes it."""
        return ".".join(self.path)


def describe(configuration: type, at: tuple[str, ...] = (), made_with: Any = None) -> Iterator[Option]:
    """Every option of the dataclass ``configuration`` in its order; a table comes before its options.

    ``made_with`` is what an enclosing table has where nothing is set: its values are the defaults then.
    """
    hints = get_type_hints(configuration, include_extras=True)
    sentences = sentences_of(configuration)
    for field in dataclasses.fields(configuration):
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
            sentences.get(field.name, ""),
            required,
            None if required else made,
            _choices(kind),
            _table(kind) is not None,
        )
        yield option
        if (nested := _table(kind)) is not None:
            yield from describe(nested, path, None if required else made)


def with_table_defaults(configuration: type, values: Mapping[str, Any], made_with: Any = None) -> dict[str, Any]:
    """``values`` of the dataclass ``configuration``; tables that are set in part get the rest of their defaults here.

    A field may hold a table with defaults of its own (a stage's optimiser has other betas than optimisers have), and
    these are the ones that are described: without this, setting one option of the table would change the others.
    """
    hints = get_type_hints(configuration, include_extras=True)
    filled = dict(values)
    for field in dataclasses.fields(configuration):
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


def sentences_of(documented: type) -> dict[str, str]:
    """The string under each assignment in the body of a class, on one line, by name; inherited ones too."""
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


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _members(kind: Any) -> list[Any]:
    """The types of a union but ``None``; else the type alone."""
    if get_origin(kind) in (Union, types.UnionType):
        return [_bare(each) for each in get_args(kind) if each is not type(None)]
    return [kind]


def _table(kind: Any) -> type | None:
    """The dataclass that a field holds, if it holds one or none."""
    (only, *others) = _members(kind)
    return only if not others and dataclasses.is_dataclass(only) and isinstance(only, type) else None


def _choices(kind: Any) -> tuple[tuple[str, str], ...]:
    (only, *others) = _members(kind)
    if others or not (isinstance(only, type) and issubclass(only, Enum)):
        return ()
    sentences = sentences_of(only)
    return tuple((str(each.value), sentences.get(each.name, "")) for each in only)


def _allowed(kind: Any) -> str:
    """What a type takes, in words."""
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
