"""Access to ClickHouse for the sink and the dashboard, by the ordinary HTTP client."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from headrace.schemas.redaction import redacted_address, remember_secret, remember_secrets
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.schema import ensure_tables, set_prices

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

READER = "reader"
"""Read-only account of the embedded ClickHouse."""
WRITER = "writer"
"""Account of the embedded ClickHouse that may also change tables."""


def open_client(
    url: str,
    *,
    secrets: Path | None = None,
    account: str = READER,
    connect_timeout_s: int = 5,
    timeout_s: int = 60,
) -> "Client":
    """Returns a client of the ClickHouse at ``url`` (``http://user:password@host:port/database``). It is thread-safe.

    If ``url`` names no user, ``secrets`` is the folder of the embedded ClickHouse's passwords, and ``account`` the
    account to use. Raises ``ValueError`` for an invalid address, ``OSError`` if the password cannot be read, and the
    client's ``ClickHouseError`` if ClickHouse does not answer.
    """
    remember_secrets(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # whose message may hold a part of the password
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"the ClickHouse address {redacted_address(url)!r} is not http://host:port: set HEADRACE_CLICKHOUSE"
        )
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user and secrets is not None:
        user, password = account, (secrets / account).read_text().strip()
        remember_secret(password)
    client = clickhouse_connect.get_client(
        interface=parts.scheme,
        host=parts.hostname,
        port=parts.port or (8443 if parts.scheme == "https" else 8123),
        username=user,
        password=password,
        database=parts.path.strip("/") or "default",
        connect_timeout=connect_timeout_s,
        send_receive_timeout=timeout_s,
        # A session would forbid concurrent statements.
        autogenerate_session_id=False,
        # Of responses: on loopback the front sends none compressed.
        compress=parts.hostname not in ("127.0.0.1", "localhost", "::1"),
    )
    # Of inserts: it takes less processor time than ClickHouse needs to receive them uncompressed, on loopback too.
    client.write_compression = "lz4"
    return client


def insert(client: "Client", table: Table, rows: pa.Table, token: str) -> None:
    """Insert ``rows``; calls with the same ``token`` insert them only once."""
    settings = {
        "insert_deduplication_token": token,
        "async_insert": 0,
        # Duplicates within a batch are collapsed by merges and by FINAL, as those of different batches are. Looking
        # for them here, too, took a tenth of ClickHouse's processor time.
        "optimize_on_insert": 0,
        # A batch of a quiet topic may span many weeks, each of which is a partition.
        "max_partitions_per_insert_block": 0,
    }
    client.insert_arrow(table.name, rows, settings=settings)


def stored_rows(client: "Client", table: Table, rows: pa.Table) -> int:
    """Returns how many rows ``table`` has of the ranges of offsets of ``rows``, a single insert of a topic, in the time
    in which Kafka got their records.
    """
    places = rows.select(["partition", "offset"]).group_by("partition")
    ranges = places.aggregate([("offset", "min"), ("offset", "max")])
    times = pc.min_max(pc.cast(rows.column("logged_at"), pa.int64()))
    first, last = (f"fromUnixTimestamp64Milli({times[name].as_py()}, 'UTC')" for name in ("min", "max"))
    conditions = [
        f"(partition = {each['partition']} AND offset BETWEEN {each['offset_min']} AND {each['offset_max']})"
        for each in ranges.to_pylist()
    ]
    places_of_rows = f"logged_at BETWEEN {first} AND {last} AND ({' OR '.join(conditions)})"
    return int(client.query(f"SELECT count() FROM {table.name} WHERE {places_of_rows}").result_rows[0][0])


class RowsRefused(Exception):
    """ClickHouse cannot store these rows; a retry would fail again."""


_REFUSALS = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 307, 321, 349, 469})
"""ClickHouse error codes about values: text that does not parse, types, ranges, sizes and constraints."""


class Stopped(Exception):
    """The process is asked to stop while it waits for ClickHouse."""


def _is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, DatabaseError) and error.code in _REFUSALS:
        return False
    return isinstance(error, ClickHouseError | OSError)


class RetryingClient:
    """A ClickHouse client that retries every call until it succeeds or ``stop`` is set."""

    def __init__(
        self, url: str, *, secrets: Path | None, stop: asyncio.Event, retry_most_s: float, cluster: str = ""
    ) -> None:
        self._url = url
        self._cluster = cluster
        self._secrets = secrets
        self._stop = stop
        self._retry_most_s = retry_most_s
        self._client: Client | None = None

    async def prepare(self) -> None:
        """Wait until ClickHouse answers and has the tables. Raises as :func:`open_client` and :func:`ensure_tables`."""
        self._client = await self._call(partial(open_client, self._url, secrets=self._secrets, account=WRITER))
        await self._call(self._ensure_tables, self._client)

    def _ensure_tables(self, client: "Client") -> None:
        ensure_tables(client, cluster=self._cluster)

    async def set_prices(self, prices: Mapping[str, Sequence[float]], currency: str) -> None:
        """As :func:`headrace.streams.clickhouse.schema.set_prices`, with retries."""
        await self._call(set_prices, self._client, prices, currency)

    async def insert(self, table: Table, rows: pa.Table, token: str, *, is_repeated: bool = False) -> None:
        """Insert ``rows`` exactly once, with retries. ``is_repeated``: they were announced before, and may have been
        inserted.

        Raises :class:`RowsRefused` if ClickHouse accepts the table's columns but not these rows, :class:`Stopped` if
        ``stop`` was set before it succeeded, and ``ValueError`` if the table's columns do not match this release.
        """
        try:
            _, attempts = await self._counted(insert, self._client, table, rows, token)
            if is_repeated or attempts > 1:
                await self._insert_if_lost(table, rows, token)
        except DatabaseError as error:
            # Check the table first: it may have been changed or recreated since this process started.
            await self._call(self._ensure_tables, self._client)
            try:
                await self._call(insert, self._client, table, rows, token)
            except DatabaseError:
                raise RowsRefused(str(error)) from error

    async def _insert_if_lost(self, table: Table, rows: pa.Table, token: str) -> None:
        """Insert ``rows`` again if an earlier attempt left nothing but its token: ClickHouse records a token before it
        renames the part, so a repeated insert is taken for a duplicate although it was killed, or failed, in between.
        """
        if not await self._call(stored_rows, self._client, table, rows):
            log.error(
                "%s has none of the %d rows of the repeated insert %s: they are inserted again",
                table.name, rows.num_rows, token,
            )  # fmt: skip
            await self._call(insert, self._client, table, rows, f"{token}:again")

    async def insert_once(self, table: Table, rows: pa.Table, token: str) -> None:
        """As :meth:`insert`, with a single attempt, for rows that may be lost. Raises the client's exceptions."""
        if self._client is not None:
            await self.call_once(insert, table, rows, token)

    async def call_once(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function`` with the client and ``arguments`` in a thread. Raises its exceptions."""
        await asyncio.to_thread(function, self._client, *arguments)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    async def _call(self, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
        return (await self._counted(function, *arguments))[0]

    async def _counted(self, function: Callable[..., ResultT], *arguments: Any) -> tuple[ResultT, int]:
        """Call ``function`` until it succeeds; returns its result and the number of attempts."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_exponential_jitter(multiplier=0.1, max=self._retry_most_s),
            sleep=self._sleep,
            before_sleep=self._warn,
        )
        result: ResultT = await retrying(asyncio.to_thread, function, *arguments)
        return result, retrying.statistics["attempt_number"]

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise Stopped

    def _warn(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.upcoming_sleep
        log.warning("ClickHouse at %s: attempt %d failed, next in %.1f s: %s",
                    self._url, state.attempt_number, pause, error)  # fmt: skip
