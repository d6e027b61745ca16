"""Whether ClickHouse answers and the sink lives, asked once a second while a page is open, and told to every page.

event: pulse
data: {"clickhouse_s": 0.4, "sink_s": 1.3}     seconds since ClickHouse answered, and since a sink gave a sign of life

No clocks are compared: a sink lives if its newest row in `sinks` differs from the one of the second before.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from headrace.streams.clickhouse.database import READER, open_client

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Seconds between two questions, and between two pulses of a page."""
TIMEOUT_S = 3
"""Seconds after which a question is given up and asked again on a new connection."""

_NEWEST = "SELECT toUnixTimestamp64Milli(max(time)) FROM sinks"


class Pulse:
    """The newest answers, shared by all open pages; nothing is asked while no page is open."""

    def __init__(self, clickhouse_url: str, secrets: Path | None, every_s: float = EVERY_S) -> None:
        """``secrets`` is that of :func:`open_client`."""
        self._url = clickhouse_url
        self._secrets = secrets
        self._every_s = every_s
        # Of its own: queries of panels that hang may occupy all threads that others use.
        self._thread = ThreadPoolExecutor(1, "pulse")
        self._client: Client | None = None
        self._listeners = 0
        self._asking: asyncio.Task[None] | None = None
        self._answered_at = 0.0
        self._changed_at: float | None = None
        self._newest: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A ``with`` block in which it asks. Its first answers count from the begin of the block on."""
        self._listeners += 1
        if self._asking is None:
            self._answered_at, self._changed_at, self._newest = monotonic(), None, None
            self._asking = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._asking.cancel()
                self._asking = None

    def event(self) -> str:
        """Returns the pulse as a server-sent event. ``sink_s`` is null if no sink has ever given a sign of life."""
        now = monotonic()
        told: dict[str, Any] = {
            "clickhouse_s": round(now - self._answered_at, 2),
            "sink_s": None if self._changed_at is None else round(now - self._changed_at, 2),
        }
        return f"event: pulse\ndata: {json.dumps(told)}\n\n"

    async def told(self, for_s: float | None = None) -> AsyncGenerator[str]:
        """Yields a pulse now and every second, and ends after ``for_s`` seconds; ``None``: never."""
        left = float("inf") if for_s is None else for_s
        while True:
            yield self.event()
            await asyncio.sleep(min(left, self._every_s))
            left -= self._every_s
            if left <= 0:
                return

    def close(self) -> None:
        """Close the connection."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                newest = await loop.run_in_executor(self._thread, self._read)
            except (ClickHouseError, OSError) as error:  # the pulse says for how long, and the page's problem why
                log.debug("no pulse: %s", error)
            else:
                self._answered_at = monotonic()
                if newest is not None and newest != self._newest:
                    self._newest, self._changed_at = newest, self._answered_at
            await asyncio.sleep(self._every_s)

    def _read(self) -> int | None:
        """Returns the time of the newest sign of life in Unix milliseconds; ``None`` without one."""
        try:
            if self._client is None:
                self._client = open_client(
                    self._url, secrets=self._secrets, account=READER, connect_timeout_s=TIMEOUT_S, timeout_s=TIMEOUT_S
                )
            return int(self._client.query(_NEWEST).result_rows[0][0]) or None
        except DatabaseError as error:
            if error.code is None:
                self._forget()
                raise
            return None  # it answers; a sink of an older release has made no such table
        except (ClickHouseError, OSError):
            self._forget()
            raise

    def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(ClickHouseError, OSError):
                client.close()
