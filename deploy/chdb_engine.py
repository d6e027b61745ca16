"""The embedded ClickHouse: one chDB engine on one folder, shared by a few sessions.

A session is a chDB connection. It runs one statement at a time, and several run side by side. Settings and the
current database belong to the session and not to the statement, so a session remembers what it has set and changes
only what the next statement wants otherwise.
"""

import queue
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chdb

_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LEADING = r"(?:\s+|--[^\n]*(?:\n|\Z)|#![^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_KEYWORD = re.compile(_LEADING + r"\(*\s*([A-Za-z]+)(?:\s+(TEMPORARY))?", re.DOTALL)
_KAFKA_DDL = re.compile(r"(?=.*\b(?:create|attach|replace)\b)(?=.*kafka)", re.IGNORECASE | re.DOTALL)
_KAFKA_ENGINE = re.compile(r"\bENGINE\s*=\s*[`\"]?kafka", re.IGNORECASE)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_STATEFUL = frozenset({"SET", "USE"})
_READ_ONLY = frozenset({"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS"})
_ERROR_CODE = re.compile(r"Code: (\d+)\.")

MAX_RESULT_BYTES = 512 * 1024 * 1024
"""Largest result of a query, in bytes: an answer is held whole in memory."""

MAX_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
"""Most memory of one statement, in bytes: the engine shares its machine with everything else."""

MAX_SECONDS = 600
"""Longest run of one statement, in seconds."""

_ENGINE_SETTINGS = {
    # Set on every session; a client's own setting of the same name wins.
    "max_result_bytes": str(MAX_RESULT_BYTES),
    "max_memory_usage": str(MAX_MEMORY_BYTES),
    "max_execution_time": str(MAX_SECONDS),
    "result_overflow_mode": "throw",
}


class EngineError(Exception):
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


def keyword(statement: str) -> str:
    """The first word of ``statement`` in capitals, comments left out: ``SELECT``."""
    found = _KEYWORD.match(statement)
    return found[1].upper() if found else ""


def is_read_only(statement: str) -> bool:
    """Whether ``statement`` can only read."""
    return keyword(statement) in _READ_ONLY


class _Session:
    """One connection and what is set on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connect()

    def _connect(self) -> None:
        self._connection = chdb.connect(str(self._path))
        self._settings: dict[str, str] = {}
        self._database = "default"
        self.prepare({}, "default")

    def prepare(self, settings: Mapping[str, str], database: str) -> None:
        """Make ``settings`` and ``database`` those of the session, changing only what differs."""
        wanted = {**_ENGINE_SETTINGS, **settings}
        changes = [f"{name} = DEFAULT" for name in self._settings if name not in wanted]
        changes += [f"{name} = {_quoted(value)}" for name, value in wanted.items() if self._settings.get(name) != value]
        if changes:
            self.run(f"SET {', '.join(changes)}")
            self._settings = wanted
        if database != self._database:
            self.run(f"USE {_identifier(database)}")
            self._database = database

    def run(self, statement: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None) -> Any:
        return self._connection.query(statement, output_format, params=dict(params or {}))

    def insert(self, statement: str, input_format: str, data: bytes) -> Any:
        with self._connection.send_insert(statement, input_format) as inserter:
            inserter.append(data)
            return inserter.finish()

    def renew(self) -> None:
        """Forget everything a client has set on the connection by statements of its own."""
        self.close()
        self._connect()

    def close(self) -> None:
        self._connection.close()


class Engine:
    """The engine on ``path``, which no other process may have open. Methods block and may be called from any thread."""

    def __init__(self, path: Path, *, sessions: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._idle: queue.LifoQueue[_Session] = queue.LifoQueue()
        self._sessions = [_Session(path) for _ in range(sessions)]
        for session in self._sessions:
            self._idle.put(session)
        version, timezone = self.query("SELECT version(), timezone()").body.decode().split()
        self.version = version
        self.timezone = timezone

    def query(
        self,
        statement: str,
        *,
        output_format: str = "TabSeparated",
        params: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> Outcome:
        """Run ``statement``; its own ``FORMAT`` clause wins over ``output_format``. Raises :class:`EngineError`."""
        self._refuse_kafka_engine(statement)
        with self._session(settings or {}, database) as session:
            try:
                result = session.run(statement, output_format, params)
            finally:
                if keyword(statement) in _STATEFUL or "TEMPORARY" in statement.upper():
                    session.renew()
        read = {"read_rows": str(result.storage_rows_read()), "read_bytes": str(result.storage_bytes_read())}
        written = {"written_rows": str(result.rows_written()), "written_bytes": str(result.bytes_written())}
        shown = {"result_rows": str(result.rows_read()), "elapsed_ns": str(int(result.elapsed() * 1e9))}
        return Outcome(result.bytes(), read | written | shown)

    def insert(
        self,
        statement: str,
        input_format: str,
        data: bytes,
        *,
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> Outcome:
        """Run ``statement`` (without its ``FORMAT`` clause) on ``data``. Raises :class:`EngineError`."""
        with self._session(settings or {}, database) as session:
            result = session.insert(statement, input_format, data)
        written = {"written_rows": str(result.rows_written), "written_bytes": str(result.bytes_written)}
        return Outcome(b"", written | {"elapsed_ns": str(int(result.elapsed * 1e9))})

    def close(self) -> None:
        """Close every session once its statement is done; the folder is free then."""
        for _ in self._sessions:
            self._idle.get().close()

    @contextmanager
    def _session(self, settings: Mapping[str, str], database: str) -> Iterator[_Session]:
        for name in settings:
            if not _SETTING.match(name):
                raise EngineError(f"Code: 115. DB::Exception: Unknown setting {name[:100]!r}. (UNKNOWN_SETTING)")
        session = self._idle.get()
        try:
            session.prepare(settings, database)
            yield session
        # chDB raises types of its own from queries and RuntimeError from inserts.
        except (chdb.ChdbError, RuntimeError) as error:
            raise EngineError(str(error)) from error
        finally:
            self._idle.put(session)

    def _refuse_kafka_engine(self, statement: str) -> None:
        # Its DDL leaves metadata behind with which the folder can never be opened again. The engine's own formatter
        # takes comments away before the check, and the words of text do not count.
        if _KAFKA_DDL.match(statement):
            plain = _LITERAL.sub("''", self._format(statement))
            if _KAFKA_ENGINE.search(plain):
                raise EngineError(
                    "Code: 344. DB::Exception: The embedded ClickHouse cannot hold Kafka tables: headrace's sink fills "
                    "the tables, or point HEADRACE_CLICKHOUSE at a server. (SUPPORT_IS_DISABLED)"
                )

    def _format(self, statement: str) -> str:
        with self._session({}, "default") as session:
            result = session.run(f"SELECT formatQuerySingleLine({_quoted(statement)})", "TabSeparatedRaw")
            return bytes(result.bytes()).decode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _identifier(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"
