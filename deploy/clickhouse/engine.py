"""The embedded ClickHouse: one chDB engine on one folder, shared by a few sessions.

A session is a chDB connection. It runs one statement at a time, and several sessions run in parallel. Settings and the
current database belong to the session and not to the statement, so a session remembers its settings and changes only
those that differ for the next statement.
"""

import json
import queue
import re
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import chdb

from headrace.deploy.clickhouse import statements
from headrace.deploy.clickhouse.allowed import FUNCTION_CATEGORIES, OTHER_FUNCTIONS
from headrace.deploy.clickhouse.statements import AllowedStatement, Refused

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INSERT_HEAD = re.compile(
    r"(INSERT INTO (?:`(?:[^`\\]|\\.)*+`|[\w.])++(?: \((?:`(?:[^`\\]|\\.)*+`|[^()`])*+\))?)( SETTINGS .*)?", re.DOTALL
)
_SHARED_MEMORY = Path("/dev/shm")
_ERROR_CODE = re.compile(r"Code: (\d+)\.")

MAX_RESULT_BYTES = 512 * 1024 * 1024
"""Largest result of a query, in bytes: results are held in memory."""

MAX_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
"""Memory limit of one statement, in bytes: the engine shares its machine with the rest of the stack."""

MAX_SPILL_BYTES = 8 * 1024 * 1024 * 1024
"""Disk space limit for sorting and grouping in one statement, in bytes."""

MAX_SECONDS = 600
"""Time limit of one statement, in seconds."""

_LIMITS = {
    # These hold for every session; a client may lower them.
    "max_result_bytes": str(MAX_RESULT_BYTES),
    "max_memory_usage": str(MAX_MEMORY_BYTES),
    "max_execution_time": str(MAX_SECONDS),
    "max_temporary_data_on_disk_size_for_query": str(MAX_SPILL_BYTES),
    "result_overflow_mode": "throw",
    # Expressions in the data of an insert would be executed without a check.
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
    # Compiled, the panels of 10 million events are no faster, and the third execution of each takes 0.1 to 0.2 s more.
    "compile_expressions": "0",
    "compile_aggregate_expressions": "0",
    "compile_sort_description": "0",
}

_MAX_CACHED = 512
"""Parsed statements that are cached: dashboards send the same statements repeatedly."""

_MAX_CACHED_CHARACTERS = 64 * 1024
"""Longest statement that is cached, in characters."""

_UNKNOWN_TREE = "does not support JSON serialization"
_FORMAT_OF_DATA = " FORMAT "


class ChdbError(Exception):
    """The engine refused a statement; ``code`` is ClickHouse's error code, 0 if there is none."""

    def __init__(self, message: str) -> None:
        start = message.find("Code: ")
        super().__init__(message[max(start, 0) :].strip())
        found = _ERROR_CODE.search(message)
        self.code = int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement."""

    body: bytes
    """The result in the requested format."""
    summary: dict[str, str]
    """Rows and bytes read and written, as in the header ``X-ClickHouse-Summary``."""


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """A parsed statement that may run."""

    text: str
    """The statement as the engine formats it, without comments; this text is executed."""
    allowed: AllowedStatement
    """What it may do, and its format."""


class _Session:
    """A connection with its settings and its current database."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        self._path = path
        self._reads = reads
        self._connect()

    def _connect(self) -> None:
        self._connection = chdb.connect(str(self._path))
        self._settings: dict[str, str] = {}
        self._database = "default"

    def prepare(self, settings: Mapping[str, str], database: str) -> None:
        """Change the session's settings and database to ``settings`` and ``database``."""
        wanted = {**_LIMITS, **settings}
        if self._reads:
            # A readonly session cannot change any setting, so it is replaced by a new one, which takes 0.3 ms.
            wanted["readonly"] = "1"
            if self._settings and wanted != self._settings:
                self.renew()
        changes = [f"{name} = DEFAULT" for name in self._settings if name not in wanted]
        changes += [f"{name} = {_quoted(value)}" for name, value in wanted.items() if self._settings.get(name) != value]
        if changes:
            self.run(f"SET {', '.join(sorted(changes, key=_readonly_last))}")
            self._settings = wanted
        if database != self._database:
            self.run(f"USE {_identifier(database)}")
            self._database = database

    def run(self, statement: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None) -> Any:
        return self._connection.query(statement, output_format, params=dict(params or {}))

    def insert(self, statement: str, input_format: str, data: bytes) -> Any:
        # chDB's streaming insert (send_insert) reports success even if storing the rows failed, by a constraint or a
        # full disk. An insert from a file reports the error.
        head = _INSERT_HEAD.fullmatch(statement)
        if head is None:
            raise ChdbError("Code: 62. DB::Exception: The insert cannot be read. (SYNTAX_ERROR)")
        with tempfile.NamedTemporaryFile(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as file:
            file.write(data)
            file.flush()
            source = f"FROM INFILE {_quoted(file.name)} COMPRESSION 'none'"
            return self.run(f"{head[1]} {source}{head[2] or ''} FORMAT {input_format}")

    def renew(self) -> None:
        """Reset everything that statements of a client have set on the connection."""
        self.close()
        self._connect()

    def close(self) -> None:
        self._connection.close()


class ChdbEngine:
    """The engine on ``path``, which no other process may have open. Methods block and may be called from any thread.

    Statements are parsed first and executed only if :mod:`headrace.deploy.clickhouse.statements` allows them; reads
    run in ``readonly`` sessions.
    """

    def __init__(self, path: Path, *, sessions: int) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._idle: dict[bool, queue.LifoQueue[_Session]] = {True: queue.LifoQueue(), False: queue.LifoQueue()}
        self._parsers: queue.LifoQueue[_Session] = queue.LifoQueue()
        self._sessions = sessions
        self._parsed: OrderedDict[str, ParsedStatement] = OrderedDict()
        self._parsed_lock = Lock()
        for _ in range(sessions):
            for reads, idle in self._idle.items():
                idle.put(_Session(path, reads=reads))
            self._parsers.put(_Session(path))
        parser = self._parsers.get()
        self.version, self.timezone = bytes(parser.run("SELECT version(), timezone()").bytes()).decode().split()
        self._denied_functions = _denied_functions(parser)
        formats = parser.run("SELECT name FROM system.formats WHERE is_output", "TabSeparatedRaw")
        self._formats = frozenset(bytes(formats.bytes()).decode().lower().split())
        self._parsers.put(parser)

    def parse(self, statement: str) -> ParsedStatement:
        """Parse and check ``statement``. Raises :class:`ChdbError` if it is not a single allowed statement."""
        with self._parsed_lock:
            if statement in self._parsed:
                self._parsed.move_to_end(statement)
                return self._parsed[statement]
        parsed = self._parse(statement)
        if len(statement) <= _MAX_CACHED_CHARACTERS:
            with self._parsed_lock:
                self._parsed[statement] = parsed
                if len(self._parsed) > _MAX_CACHED:
                    self._parsed.popitem(last=False)
        return parsed

    def parse_insert(self, head: str, input_format: str) -> str:
        """Parse ``head``, an insert without format and data; returns it as the engine formats it. Raises as
        :meth:`parse` does."""
        text = self.parse(f"{head}{_FORMAT_OF_DATA}{input_format}").text
        if not re.fullmatch(r"\w+", input_format):
            raise ChdbError(f"Code: 73. DB::Exception: Unknown format {input_format[:100]!r}. (UNKNOWN_FORMAT)")
        return text[: text.rindex(_FORMAT_OF_DATA)]

    def query(
        self,
        statement: ParsedStatement,
        *,
        output_format: str = "TabSeparated",
        params: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
        readonly: bool = True,
    ) -> StatementResult:
        """Run ``statement``; its own ``FORMAT`` clause takes precedence over ``output_format``.

        With ``readonly`` it runs in a session that can only read and accepts only settings for reading. Raises
        :class:`ChdbError`.
        """
        if output_format.lower() not in self._formats:
            raise ChdbError(f"Code: 73. DB::Exception: Unknown format {output_format[:100]!r}. (UNKNOWN_FORMAT)")
        with self._session(settings or {}, database, readonly) as session:
            try:
                result = session.run(statement.text, output_format, params)
            finally:
                # A client's settings and temporary tables must not outlive its statement.
                if not readonly and ("TEMPORARY" in statement.text or statement.text.startswith(("SET ", "USE "))):
                    session.renew()
        read = {"read_rows": str(result.storage_rows_read()), "read_bytes": str(result.storage_bytes_read())}
        written = {"written_rows": str(result.rows_written()), "written_bytes": str(result.bytes_written())}
        shown = {"result_rows": str(result.rows_read()), "elapsed_ns": str(int(result.elapsed() * 1e9))}
        return StatementResult(result.bytes(), read | written | shown)

    def insert(
        self,
        head: str,
        input_format: str,
        data: bytes,
        *,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> StatementResult:
        """Run the insert ``head`` from :meth:`parse_insert` with ``data``. Raises :class:`ChdbError`."""
        with self._session(settings or {}, database, False) as session:
            result = session.insert(head, input_format, data)
        written = {"written_rows": str(result.rows_written()), "written_bytes": str(result.bytes_written())}
        return StatementResult(b"", written | {"elapsed_ns": str(int(result.elapsed() * 1e9))})

    def close(self) -> None:
        """Close every session after its current statement; another process can then open the folder."""
        for idle in (*self._idle.values(), self._parsers):
            for _ in range(self._sessions):
                idle.get().close()

    @contextmanager
    def _session(self, settings: Mapping[str, str], database: str, reads: bool) -> Iterator[_Session]:
        for name in settings:
            if not _SETTING.match(name) or name.lower() == "readonly":
                raise ChdbError(f"Code: 115. DB::Exception: Unknown setting {name[:100]!r}. (UNKNOWN_SETTING)")
        with _refusals():
            statements.check_database_name(database)
            statements.check_settings(settings, _LIMITS, reads=reads)
        session = self._idle[reads].get()
        try:
            with _engine_errors():
                session.prepare(settings, database)
                yield session
        finally:
            self._idle[reads].put(session)

    def _parse(self, statement: str) -> ParsedStatement:
        text = self._call("formatQuerySingleLine", statement)
        with _refusals():
            allowed = statements.check_database_description(text)
            if allowed is None:
                allowed = statements.check_statement(self._tree(text), self._denied_functions)
        return ParsedStatement(text, allowed)

    def _tree(self, text: str) -> Any:
        try:
            found = self._call("parseQueryToJSON", statements.described_table(text) or text)
            return json.loads(found)
        except ChdbError as error:
            if _UNKNOWN_TREE not in str(error):
                raise
            raise Refused(f"statements that begin with {' '.join(text.split()[:2])[:60]} are not allowed") from error
        except RecursionError as error:
            raise Refused("the statement is nested too deeply") from error

    def _call(self, function: str, statement: str) -> str:
        session = self._parsers.get()
        try:
            with _engine_errors():
                # The statement is only a quoted argument here: it is not executed.
                result = session.run(f"SELECT {function}({_quoted(statement)})", "TabSeparatedRaw")
                return bytes(result.bytes()).decode().removesuffix("\n")
        finally:
            self._parsers.put(session)


@contextmanager
def _engine_errors() -> Iterator[None]:
    # chDB raises its own error types from queries, and RuntimeError from inserts.
    try:
        yield
    except (chdb.ChdbError, RuntimeError) as error:
        raise ChdbError(str(error)) from error


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        raise ChdbError(
            f"Code: 497. DB::Exception: The embedded ClickHouse refuses this: {refused}. If you need it, set "
            "HEADRACE_CLICKHOUSE to the address of a ClickHouse server of your own. (ACCESS_DENIED)"
        ) from refused


def _denied_functions(session: _Session) -> frozenset[str]:
    """Returns the names of this engine's functions that are not allowed, with aliases, in lower case."""
    rows = session.run(
        "SELECT name, alias_to, categories, is_aggregate FROM system.functions FORMAT JSONCompactEachRow"
    )
    listed = [json.loads(line) for line in bytes(rows.bytes()).splitlines()]
    denied = {
        name
        for name, alias_to, category, aggregates in listed
        if not (aggregates or alias_to)
        and category not in FUNCTION_CATEGORIES
        and not (category == "Other" and name in OTHER_FUNCTIONS)
    }
    denied |= {name for name, alias_to, *_ in listed if alias_to in denied}
    return frozenset(name.lower() for name in denied)


def _readonly_last(change: str) -> bool:
    return change.startswith("readonly ")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _identifier(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"
