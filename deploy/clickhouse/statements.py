"""What the embedded ClickHouse will run, decided on the engine's own parse of a statement. Pure.

The engine runs inside one process and has no users, grants or sandbox of its own: it takes a table named
``/etc/passwd`` for a file, several statements at once, and functions that read files or open connections. So each
statement is parsed by the engine first, must be a single one, and its syntax tree is held against lists of what is
offered. What is not on a list is refused. Text that the engine would parse a second time, outside that tree, is on
no list: columns as a string, settings that are expressions, a table's name as a string.

    SELECT * FROM file('x')          → Refused: the table function file
    SELECT 1 INTO OUTFILE 'x'        → Refused: INTO OUTFILE
    SELECT * FROM rewards FORMAT CSV → Ruling(reads=True, output_format="CSV")
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.deploy.clickhouse.allowed import (
    ENGINES,
    EXPLAIN_SETTINGS,
    INDEX_TYPES,
    SYSTEM_TABLES,
    TABLE_FUNCTIONS,
    TABLE_SETTINGS,
    WRITE_SETTINGS,
)

Tree: TypeAlias = Mapping[str, Any]
"""A node of the syntax tree, as ``parseQueryToJSON`` gives it."""

READ_SETTINGS = re.compile(
    r"(?!output_format_schema|output_format_avro_confluent|max_untracked_memory)(?:output_format_\w+|date_time_\w+|optimize_\w+|enable_\w+|max_\w+|join_\w+|query_plan_\w+"
    r"|count_distinct_implementation|extremes|final|group_by_use_nulls|limit|offset|log_comment|session_timezone"
    r"|prefer_column_name_to_alias|prefer_localhost_replica|union_default_mode|aggregate_functions_null_for_empty"
    r"|use_query_cache|use_skip_indexes\w*"
    r"|result_overflow_mode|read_overflow_mode|timeout_overflow_mode|cast_\w+|allow_suspicious_\w+)\Z"
)
"""Settings that a read may bring along: how it is computed and shown, never where from."""

_DESCRIBES = re.compile(
    r"(?:DESCRIBE TABLE|EXISTS TABLE|EXISTS VIEW|SHOW CREATE TABLE|SHOW CREATE VIEW"
    r"|SHOW (?:EXTENDED )?(?:FULL )?COLUMNS FROM|SHOW INDEXES FROM) "
)
_SHOWS = re.compile(
    r"(?P<table>\w+|`(?:[^`\\]|\\.)*`)(?: FROM (?P<database>\w+|`(?:[^`\\]|\\.)*`))?"
    r"(?: (?:NOT )?I?LIKE '(?:[^'\\]|\\.)*')?(?= |\Z)"
)
_DESCRIBES_DATABASE = re.compile(r"(?:EXISTS DATABASE|SHOW CREATE DATABASE) (?:\w+|`[\w$ -]+`)(?: FORMAT (\w+))?\Z")
_NAME = re.compile(r"[\w$ -]+\Z")
_IN = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?\Z", re.IGNORECASE)
_TABLE_KEYS = frozenset({"table", "as_table", "from_table", "to_table", "table_name", "table_ast"})
_READ_KINDS = frozenset({"SelectWithUnionQuery", "ShowTablesQuery", "ExplainQuery"})
_WRITE_KINDS = frozenset(
    {"AlterQuery", "CreateQuery", "DeleteQuery", "DropQuery", "InsertQuery"}
    | {"OptimizeQuery", "RenameQuery", "SetQuery", "UpdateQuery", "UseQuery"}
)


class Refused(Exception):
    """The statement is not offered; the message says what and what to do instead."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A statement that may run."""

    reads: bool
    """Whether it can only read."""
    output_format: str = ""
    """Format that it names; empty where it names none."""


def described_table(canonical: str) -> str | None:
    """The query whose tables are those that ``canonical`` describes, for statements that have no tree of their own.

    ``DESCRIBE TABLE t FORMAT CSV`` → ``SELECT * FROM t FORMAT CSV``; ``None`` for other statements.
    """
    found = _DESCRIBES.match(canonical)
    if found is None:
        return None
    described = canonical[found.end() :]
    if shown := _SHOWS.match(described):
        # SHOW COLUMNS FROM t FROM d LIKE 'a%' WHERE …: a SELECT names the database first and takes a pattern nowhere.
        table, database = shown["table"], shown["database"]
        described = f"{f'{database}.' if database else ''}{table}{described[shown.end() :]}"
    return f"SELECT * FROM {described}"


def rule_on_database(canonical: str) -> Ruling | None:
    """The ruling on a statement that describes a database; ``None`` for other statements."""
    found = _DESCRIBES_DATABASE.match(canonical)
    return Ruling(True, found[1] or "") if found else None


def rule_on(tree: Tree, denied_functions: frozenset[str]) -> Ruling:
    """Whether the statement of ``tree`` may run. ``denied_functions``: names in lower case.

    Raises :class:`Refused` for what is not offered.
    """
    kind = tree.get("type")
    if kind not in _READ_KINDS and kind not in _WRITE_KINDS:
        raise Refused(f"statements of the kind {kind} are not offered")
    if kind == "ExplainQuery":
        explained = tree.get("query")
        if not isinstance(explained, Mapping) or explained.get("type") != "SelectWithUnionQuery":
            raise Refused("EXPLAIN is offered for SELECT")
    for node in _nodes(tree):
        _rule_on_node(node, denied_functions)
    named = tree.get("format_ast") or {}
    return Ruling(kind in _READ_KINDS, str(named.get("name", "")))


def _nodes(tree: Tree) -> Iterator[Tree]:
    """Every node; without recursion, since a statement may be nested as deeply as the parser allows."""
    left: list[Any] = [tree]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield found
            left.extend(found.values())
        elif isinstance(found, list):
            left.extend(found)


def _rule_on_node(node: Tree, denied_functions: frozenset[str]) -> None:
    for key in ("out_file", "infile"):
        if node.get(key):
            raise Refused("INTO OUTFILE and FROM INFILE are not offered: the client writes and reads files")
    for key in ("table_function", "as_table_function"):
        if node.get(key):
            name = str(node[key].get("name"))
            if name.lower() not in TABLE_FUNCTIONS:
                raise Refused(
                    f"the table function {name[:100]} is not offered: it leads out of the database, or takes columns "
                    "as text"
                )
    for key in _TABLE_KEYS & node.keys():
        _rule_on_table(node[key])
    if "func_name" in node:
        _rule_on_function(str(node["func_name"]), denied_functions)
    match node.get("type"):
        case "TableIdentifier":
            _rule_on_table(node)
        case "Function" | "FunctionWithKeyValueArguments":
            _rule_on_call(node, denied_functions)
        case "CreateQuery" if node.get("is_dictionary") or node.get("has_attach_from_path"):
            raise Refused("dictionaries and tables from other folders are not offered")
        case "IndexDeclaration":
            index_type = str((node.get("index_type") or {}).get("name"))
            if index_type.lower() not in INDEX_TYPES:
                raise Refused(f"indexes of the type {index_type[:100]} are not offered")
        case "SetQuery":
            for name in (
                *(change.get("name") for change in node.get("changes", ())),
                *node.get("default_settings", ()),
            ):
                _rule_on_setting_of_statement(str(name))


def _rule_on_setting_of_statement(name: str) -> None:
    if not (READ_SETTINGS.match(name) or name in WRITE_SETTINGS | TABLE_SETTINGS | EXPLAIN_SETTINGS):
        raise Refused(f"the setting {name[:100]} is not offered")


def _rule_on_call(call: Tree, denied_functions: frozenset[str]) -> None:
    name = str(call.get("name"))
    if call.get("kind") in ("TABLE_ENGINE", "DATABASE_ENGINE"):
        if name not in ENGINES:
            raise Refused(f"the engine {name[:100]} is not offered here: use one of {', '.join(sorted(ENGINES))}")
        return
    _rule_on_function(name, denied_functions)
    if _IN.match(name):
        arguments = (call.get("arguments") or {}).get("children") or []
        if len(arguments) > 1 and arguments[1].get("type") == "Identifier":
            _rule_on_table(arguments[1])


def _rule_on_function(name: str, denied_functions: frozenset[str]) -> None:
    if name.lower() in denied_functions:
        raise Refused(f"the function {name[:100]} is not offered: it does more than compute from its arguments")


def _rule_on_table(table: Any) -> None:
    """A table's name, as text or as an identifier. The engine takes names that look like paths for files."""
    if not isinstance(table, Mapping):
        parts = [str(table)] if table else []
    elif table.get("children"):
        raise Refused("a table's name cannot be a parameter: write it into the statement")
    else:
        parts = [str(part) for part in table.get("name_parts") or [table.get("name", "")] if part]
    for part in parts:
        if not _NAME.match(part):
            raise Refused(f"there is no table {part[:100]!r}: names consist of letters, digits, _, $, - and spaces")
    if len(parts) > 1 and parts[0].lower() == "system" and parts[1] not in SYSTEM_TABLES:
        raise Refused(f"the table system.{parts[1][:100]} is not offered")


def rule_on_database_name(name: str) -> None:
    """Raises :class:`Refused` where a request may not choose the database ``name``."""
    if not _NAME.match(name) or name.lower() == "system":
        raise Refused(f"the database {name[:100]!r} cannot be chosen: write system.TABLE into the statement")


def rule_on_settings(settings: Mapping[str, str], limits: Mapping[str, str], *, reads: bool) -> None:
    """Raises :class:`Refused` for a setting that a request may not bring along, or that raises one of ``limits``.

    A read may bring those that say how it is computed and shown, a write also those of inserts.
    """
    for name, value in settings.items():
        if not (READ_SETTINGS.match(name) or (name in WRITE_SETTINGS and not reads)):
            raise Refused(f"the setting {name[:100]} is not offered{' for reading' if reads else ''}")
        limit = limits.get(name)
        if limit is not None and value != limit and not _is_lower(value, limit):
            raise Refused(f"the setting {name} is at most {limit}")


def _is_lower(value: str, limit: str) -> bool:
    return limit.isdecimal() and value.isdecimal() and len(value) <= len(limit) and 0 < int(value) <= int(limit)
