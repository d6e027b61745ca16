"""Decides which statements the embedded ClickHouse runs, from the engine's own parse of a statement. Pure.

The engine has no users, grants or sandbox: it accepts a table named ``/etc/passwd`` as a file, several statements in
one request, and functions that read files or open connections. Therefore the engine parses each request first. It must
be a single statement, and its syntax tree is checked against allow lists; anything that is not on a list is refused.
Text that the engine would parse a second time, outside the tree, is never allowed: columns as a string, settings that
are expressions, a table's name as a string.

    SELECT * FROM file('x')          → Refused: the table function file
    SELECT 1 INTO OUTFILE 'x'        → Refused: INTO OUTFILE
    SELECT * FROM rewards FORMAT CSV → AllowedStatement(reads=True, output_format="CSV")
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
"""A node of the syntax tree from ``parseQueryToJSON``."""

READ_SETTINGS = re.compile(
    r"(?!output_format_schema|output_format_avro_confluent|max_untracked_memory)(?:output_format_\w+|date_time_\w+|optimize_\w+|enable_\w+|max_\w+|join_\w+|query_plan_\w+"
    r"|count_distinct_implementation|extremes|final|group_by_use_nulls|limit|offset|log_comment|session_timezone"
    r"|prefer_column_name_to_alias|prefer_localhost_replica|union_default_mode|aggregate_functions_null_for_empty"
    r"|use_query_cache|use_skip_indexes\w*"
    r"|result_overflow_mode|read_overflow_mode|timeout_overflow_mode|cast_\w+|allow_suspicious_\w+)\Z"
)
"""Settings that a read may use: they affect how a result is computed and formatted, but not its source."""

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
    """The statement is not allowed; the message names the reason and an alternative."""


@dataclass(frozen=True, slots=True)
class AllowedStatement:
    """A statement that may run."""

    reads: bool
    """Whether it only reads."""
    output_format: str = ""
    """The format in its ``FORMAT`` clause; empty without one."""


def described_table(canonical: str) -> str | None:
    """Returns a query on the table that ``canonical`` describes, because such statements have no syntax tree.

    ``DESCRIBE TABLE t FORMAT CSV`` → ``SELECT * FROM t FORMAT CSV``; ``None`` for other statements.
    """
    found = _DESCRIBES.match(canonical)
    if found is None:
        return None
    described = canonical[found.end() :]
    if shown := _SHOWS.match(described):
        # SHOW COLUMNS FROM t FROM d LIKE 'a%' WHERE …: in a SELECT the database comes first, and there is no pattern.
        table, database = shown["table"], shown["database"]
        described = f"{f'{database}.' if database else ''}{table}{described[shown.end() :]}"
    return f"SELECT * FROM {described}"


def check_database_description(canonical: str) -> AllowedStatement | None:
    """Returns the allowed statement if it describes a database; ``None`` for other statements."""
    found = _DESCRIBES_DATABASE.match(canonical)
    return AllowedStatement(True, found[1] or "") if found else None


def check_statement(tree: Tree, denied_functions: frozenset[str]) -> AllowedStatement:
    """Check that the statement of ``tree`` may run. ``denied_functions`` are names in lower case.

    Raises :class:`Refused` if it is not allowed.
    """
    kind = tree.get("type")
    if kind not in _READ_KINDS and kind not in _WRITE_KINDS:
        raise Refused(f"statements of the kind {kind} are not allowed")
    if kind == "ExplainQuery":
        explained = tree.get("query")
        if not isinstance(explained, Mapping) or explained.get("type") != "SelectWithUnionQuery":
            raise Refused("EXPLAIN is allowed for SELECT only")
    for node in _nodes(tree):
        _check_node(node, denied_functions)
    named = tree.get("format_ast") or {}
    return AllowedStatement(kind in _READ_KINDS, str(named.get("name", "")))


def _nodes(tree: Tree) -> Iterator[Tree]:
    """Yield every node; without recursion, because a statement may be nested as deeply as the parser allows."""
    left: list[Any] = [tree]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield found
            left.extend(found.values())
        elif isinstance(found, list):
            left.extend(found)


def _check_node(node: Tree, denied_functions: frozenset[str]) -> None:
    for key in ("out_file", "infile"):
        if node.get(key):
            raise Refused("INTO OUTFILE and FROM INFILE are not allowed: write and read files in the client")
    for key in ("table_function", "as_table_function"):
        if node.get(key):
            name = str(node[key].get("name"))
            if name.lower() not in TABLE_FUNCTIONS:
                raise Refused(
                    f"the table function {name[:100]} is not allowed: it accesses data outside the database, or takes "
                    "columns as text"
                )
    for key in _TABLE_KEYS & node.keys():
        _check_table(node[key])
    if "func_name" in node:
        _check_function(str(node["func_name"]), denied_functions)
    match node.get("type"):
        case "TableIdentifier":
            _check_table(node)
        case "Function" | "FunctionWithKeyValueArguments":
            _check_call(node, denied_functions)
        case "CreateQuery" if node.get("is_dictionary") or node.get("has_attach_from_path"):
            raise Refused("dictionaries and tables from other folders are not allowed")
        case "IndexDeclaration":
            index_type = str((node.get("index_type") or {}).get("name"))
            if index_type.lower() not in INDEX_TYPES:
                raise Refused(f"indexes of the type {index_type[:100]} are not allowed")
        case "SetQuery":
            for name in (
                *(change.get("name") for change in node.get("changes", ())),
                *node.get("default_settings", ()),
            ):
                _check_statement_setting(str(name))


def _check_statement_setting(name: str) -> None:
    if not (READ_SETTINGS.match(name) or name in WRITE_SETTINGS | TABLE_SETTINGS | EXPLAIN_SETTINGS):
        raise Refused(f"the setting {name[:100]} is not allowed")


def _check_call(call: Tree, denied_functions: frozenset[str]) -> None:
    name = str(call.get("name"))
    if call.get("kind") in ("TABLE_ENGINE", "DATABASE_ENGINE"):
        if name not in ENGINES:
            raise Refused(f"the engine {name[:100]} is not allowed here: use one of {', '.join(sorted(ENGINES))}")
        return
    _check_function(name, denied_functions)
    if _IN.match(name):
        arguments = (call.get("arguments") or {}).get("children") or []
        if len(arguments) > 1 and arguments[1].get("type") == "Identifier":
            _check_table(arguments[1])


def _check_function(name: str, denied_functions: frozenset[str]) -> None:
    if name.lower() in denied_functions:
        raise Refused(f"the function {name[:100]} is not allowed: it does more than compute from its arguments")


def _check_table(table: Any) -> None:
    """Check a table's name, a text or an identifier. The engine would read a name that looks like a path as a file."""
    if not isinstance(table, Mapping):
        parts = [str(table)] if table else []
    elif table.get("children"):
        raise Refused("a table's name cannot be a parameter: write the name in the statement")
    else:
        parts = [str(part) for part in table.get("name_parts") or [table.get("name", "")] if part]
    for part in parts:
        if not _NAME.match(part):
            raise Refused(f"there is no table {part[:100]!r}: names consist of letters, digits, _, $, - and spaces")
    if len(parts) > 1 and parts[0].lower() == "system" and parts[1] not in SYSTEM_TABLES:
        raise Refused(f"the table system.{parts[1][:100]} is not allowed")


def check_database_name(name: str) -> None:
    """Raise :class:`Refused` if a request may not select the database ``name``."""
    if not _NAME.match(name) or name.lower() == "system":
        raise Refused(f"the database {name[:100]!r} cannot be selected: write system.TABLE in the statement")


def check_settings(settings: Mapping[str, str], limits: Mapping[str, str], *, reads: bool) -> None:
    """Raise :class:`Refused` for a setting that a request may not use, or that exceeds one of ``limits``.

    A read may use settings for computing and formatting its result, a write also those of inserts.
    """
    for name, value in settings.items():
        if not (READ_SETTINGS.match(name) or (name in WRITE_SETTINGS and not reads)):
            raise Refused(f"the setting {name[:100]} is not allowed{' for reading' if reads else ''}")
        limit = limits.get(name)
        if limit is not None and value != limit and not _is_lower(value, limit):
            raise Refused(f"the setting {name} may be at most {limit}")


def _is_lower(value: str, limit: str) -> bool:
    return limit.isdecimal() and value.isdecimal() and len(value) <= len(limit) and 0 < int(value) <= int(limit)
