"""The embedded ClickHouse: one chDB engine on one folder, shared by a few sessions.

A session is a chDB connection. It runs one statement at a time, and several run side by side. Settings and the
current database belong to the session and not to the statement, so a session remembers what it has set and changes
only what the next statement wants otherwise.
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
from headrace.deploy.clickhouse.statements import Refused, Ruling

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INSERT_HEAD = re.compile(
    r"(INSERT INTO (?:`(?:[^`\\]|\\.)*+`|[\w.])++(?: \((?:`(?:[^`\\]|\\.)*+`|[^()`])*+\))?)( SETTINGS .*)?", re.DOTALL
)
_SHARED_MEMORY = Path("/dev/shm")
_ERROR_CODE = re.compile(r"Code: (\d+)\.")

MAX_RESULT_BYTES = 512 * 1024 * 1024
"""Largest result of a query, in bytes: an answer is held whole in memory."""

MAX_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
"""Most memory of one statement, in bytes: the engine shares its machine with everything else."""

MAX_SPILL_BYTES = 8 * 1024 * 1024 * 1024
"""Most that sorts and groupings of one statement put on disk, in bytes."""

MAX_SECONDS = 600
"""Longest run of one statement, in seconds."""

_LIMITS = {
    # Of every session; a client may lower them.
    "max_result_bytes": str(MAX_RESULT_BYTES),
    "max_memory_usage": str(MAX_MEMORY_BYTES),
    "max_execution_time": str(MAX_SECONDS),
    "max_temporary_data_on_disk_size_for_query": str(MAX_SPILL_BYTES),
    "result_overflow_mode": "throw",
    # Expressions among the data of an insert would be run unread.
    "input_format_values_interpret_expressions": "0",
    "input_format_values_deduce_templates_of_expressions": "0",
}

_KEPT_RULINGS = 512
"""Statements whose ruling is remembered: dashboards send the same ones again and again."""

_KEPT_STATEMENT = 64 * 1024
"""Longest statement that is remembered, in characters."""

_UNKNOWN_TREE = "does not support JSON serialization"
_FORMAT_OF_DATA = " FORMAT "


class ChdbError(Exception):
    """The engine refused a statement; ``code`` is ClickHouse's (0 where there is none)."""

    def __init__(self, message: str) -> None:
        start = message.find("Code: ")
        super().__init__(message[max(start, 0) :].strip())
        found = _ERROR_CODE.search(message)
        self.code = int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a statement gave."""

    body: bytes
    """Result in the asked format."""
    summary: dict[str, str]
    """Rows and bytes read and written, as the header ``X-ClickHouse-Summary`` has them."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that was parsed and may run."""

    text: str
    """In the engine's own spelling, without comments; this is what runs."""
    ruling: Ruling
    """What it does."""


class _Session:
    """One connection and what is set on it."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        self._path = path
        self._reads = reads
        self._connect()

    def _connect(self) -> None:
        self._connection = chdb.connect(str(self._path))
        self._settings: dict[str, str] = {}
        self._database = "default"

    def prepare(self, settings: Mapping[str, str], database: str) -> None:
        """Make ``settings`` and ``database`` those of the session, changing only what differs."""
        wanted = {**_LIMITS, **settings}
        if self._reads:
            # Nothing can be set once a session is readonly, not even that it no longer is: another begins, in 0.3 ms.
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
        # chDB's own streaming insert (send_insert) reports success for rows that storing them raised for: a constraint,
        # a full disk. From a file it says so.
        head = _INSERT_HEAD.fullmatch(statement)
        if head is None:
            raise ChdbError("Code: 62. DB::Exception: The insert cannot be read. (SYNTAX_ERROR)")
        with tempfile.NamedTemporaryFile(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as file:
            file.write(data)
            file.flush()
            source = f"FROM INFILE {_quoted(file.name)} COMPRESSION 'none'"
            return self.run(f"{head[1]} {source}{head[2] or ''} FORMAT {input_format}")

    def renew(self) -> None:
        """Forget everything a client has set on the connection by statements of its own."""
        self.close()
        self._connect()

    def close(self) -> None:
        self._connection.close()


class ChdbEngine:
    """The engine on ``path``, which no other process may have open. Methods block and may be called from any thread.

    Statements are parsed first and run only if :mod:`headrace.deploy.clickhouse.statements` allows them; reads run in
    sessions that are ``readonly``.
    """

    def __init__(self, path: Path, *, sessions: int) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._idle: dict[bool, queue.LifoQueue[_Session]] = {True: queue.LifoQueue(), False: queue.LifoQueue()}
        self._parsers: queue.LifoQueue[_Session] = queue.LifoQueue()
        self._sessions = sessions
        self._rulings: OrderedDict[str, Statement] = OrderedDict()
        self._rulings_lock = Lock()
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

    def parse(self, statement: str) -> Statement:
        """``statement``, ready to run. Raises :class:`ChdbError` where it is no single statement or not offered."""
        with self._rulings_lock:
            if statement in self._rulings:
                self._rulings.move_to_end(statement)
                return self._rulings[statement]
        parsed = self._parse(statement)
        if len(statement) <= _KEPT_STATEMENT:
            with self._rulings_lock:
                self._rulings[statement] = parsed
                if len(self._rulings) > _KEPT_RULINGS:
                    self._rulings.popitem(last=False)
        return parsed

    def parse_insert(self, head: str, input_format: str) -> str:
        """``head``, an insert without format and data, in the engine's own spelling. Raises as :meth:`parse`."""
        text = self.parse(f"{head}{_FORMAT_OF_DATA}{input_format}").text
        if not re.fullmatch(r"\w+", input_format):
            raise ChdbError(f"Code: 73. DB::Exception: Unknown format {input_format[:100]!r}. (UNKNOWN_FORMAT)")
        return text[: text.rindex(_FORMAT_OF_DATA)]

    def query(
        self,
        statement: Statement,
        *,
        output_format: str = "TabSeparated",
        params: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
        readonly: bool = True,
    ) -> Outcome:
        """Run ``statement``; its own ``FORMAT`` clause wins over ``output_format``.

        ``readonly``: in a session that can only read, with no settings but those that are offered for reading. Raises
        :class:`ChdbError`.
        """
        if output_format.lower() not in self._formats:
            raise ChdbError(f"Code: 73. DB::Exception: Unknown format {output_format[:100]!r}. (UNKNOWN_FORMAT)")
        with self._session(settings or {}, database, readonly) as session:
            try:
                result = session.run(statement.text, output_format, params)
            finally:
                # What a client has set or made in a session by a statement of its own ends with the statement.
                if not readonly and ("TEMPORARY" in statement.text or statement.text.startswith(("SET ", "USE "))):
                    session.renew()
        read = {"read_rows": str(result.storage_rows_read()), "read_bytes": str(result.storage_bytes_read())}
        written = {"written_rows": str(result.rows_written()), "written_bytes": str(result.bytes_written())}
        shown = {"result_rows": str(result.rows_read()), "elapsed_ns": str(int(result.elapsed() * 1e9))}
        return Outcome(result.bytes(), read | written | shown)

    def insert(
        self,
        head: str,
        input_format: str,
        data: bytes,
        *,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> Outcome:
        """Run the insert ``head``, which :meth:`parse_insert` gave, on ``data``. Raises :class:`ChdbError`."""
        with self._session(settings or {}, database, False) as session:
            result = session.insert(head, input_format, data)
        written = {"written_rows": str(result.rows_written()), "written_bytes": str(result.bytes_written())}
        return Outcome(b"", written | {"elapsed_ns": str(int(result.elapsed() * 1e9))})

    def close(self) -> None:
        """Close every session once its statement is done; the folder is free then."""
        for idle in (*self._idle.values(), self._parsers):
            for _ in range(self._sessions):
                idle.get().close()

    @contextmanager
    def _session(self, settings: Mapping[str, str], database: str, reads: bool) -> Iterator[_Session]:
        for name in settings:
            if not _SETTING.match(name) or name.lower() == "readonly":
                raise ChdbError(f"Code: 115. DB::Exception: Unknown setting {name[:100]!r}. (UNKNOWN_SETTING)")
        with _refusals():
            statements.rule_on_database_name(database)
            statements.rule_on_settings(settings, _LIMITS, reads=reads)
        session = self._idle[reads].get()
        try:
            with _engine_errors():
                session.prepare(settings, database)
                yield session
        finally:
            self._idle[reads].put(session)

    def _parse(self, statement: str) -> Statement:
        text = self._ask("formatQuerySingleLine", statement)
        with _refusals():
            ruling = statements.rule_on_database(text)
            if ruling is None:
                ruling = statements.rule_on(self._tree(text), self._denied_functions)
        return Statement(text, ruling)

    def _tree(self, text: str) -> Any:
        try:
            found = self._ask("parseQueryToJSON", statements.described_table(text) or text)
            return json.loads(found)
        except ChdbError as error:
            if _UNKNOWN_TREE not in str(error):
                raise
            raise Refused(f"statements that begin with {' '.join(text.split()[:2])[:60]} are not offered") from error
        except RecursionError as error:
            raise Refused("the statement is nested too deeply") from error

    def _ask(self, function: str, statement: str) -> str:
        session = self._parsers.get()
        try:
            with _engine_errors():
                # Text of the session and not of the statement: nothing of it is run here, whatever it says.
                result = session.run(f"SELECT {function}({_quoted(statement)})", "TabSeparatedRaw")
                return bytes(result.bytes()).decode().removesuffix("\n")
        finally:
            self._parsers.put(session)


@contextmanager
def _engine_errors() -> Iterator[None]:
    # chDB raises types of its own from queries and RuntimeError from inserts.
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
            f"Code: 497. DB::Exception: The embedded ClickHouse refuses this: {refused}. For more, point "
            "HEADRACE_CLICKHOUSE at a server of your own. (ACCESS_DENIED)"
        ) from refused


def _denied_functions(session: _Session) -> frozenset[str]:
    """Names of the functions of this engine that are not offered, aliases included, in lower case."""
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
