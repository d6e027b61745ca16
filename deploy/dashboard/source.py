"""Reads ClickHouse for requests of the dashboard, and explains why it cannot."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from headrace.schemas.redaction import redacted_address
from headrace.streams.clickhouse.database import READER, open_client

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 2
"""Requests that query ClickHouse at the same time; others wait."""
TIMEOUT_S = 20
"""Seconds after which a query is given up."""
_UNKNOWN_TABLE = 60


class Unavailable(Exception):
    """ClickHouse cannot be read; the message names the cause and the remedy."""


def problem_of(clickhouse_url: str, error: Exception) -> str:
    """Returns why the ClickHouse at ``clickhouse_url`` cannot be read, and what to do, in a sentence."""
    where = f"ClickHouse at {redacted_address(clickhouse_url)}"
    code = error.code if isinstance(error, DatabaseError) else None
    if code == _UNKNOWN_TABLE:
        return "The tables do not exist yet: the sink creates them when it starts (headrace up)."
    if code is None:
        return f"{where} does not answer: check headrace status, or set HEADRACE_CLICKHOUSE."
    return f"{where} refused a query (code {code}): the dashboard's log has the error."


class Source:
    """The ClickHouse of the pages about single records, by one client that all requests share."""

    def __init__(self, clickhouse_url: str, secrets: Path | None) -> None:
        """``secrets`` is that of :func:`open_client`."""
        self._url = clickhouse_url
        self._secrets = secrets
        self._client: Client | None = None
        self._free = asyncio.Semaphore(AT_ONCE)
        self._opening = asyncio.Lock()

    async def read(self, query: "Callable[[Client], T]") -> T:
        """Returns the result of ``query``, which runs in a thread. Raises :class:`Unavailable`."""
        async with self._free:
            try:
                async with self._opening:
                    if self._client is None:
                        self._client = await asyncio.to_thread(self._open)
                return await asyncio.to_thread(query, self._client)
            except (ClickHouseError, OSError) as error:
                problem = problem_of(self._url, error)
                log.warning("%s %s", problem, error)
                raise Unavailable(problem) from error

    def _open(self) -> "Client":
        return open_client(self._url, secrets=self._secrets, account=READER, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
