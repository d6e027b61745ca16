"""The tables that the sink computes from others, `starts` and `slice_sums`: what to write, when, and after a crash.

insert into events              → its starts wait, and are inserted together every two seconds
insert into rewards             → its runs and versions wait, and are recomputed together, every 10 to 600 seconds
start of the sink               → what a crash has lost, or an older release did not write, is found in the tables

An insert of its own for each batch would cost ClickHouse some 10 ms of processor time each.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.database import RetryingClient
from headrace.streams.clickhouse.schema import compute_missing
from headrace.streams.clickhouse.slice_sums import recompute
from headrace.streams.clickhouse.starts import starts_of
from headrace.streams.clickhouse.tables import EVENTS, REWARDS, STARTS, TRAJECTORIES

log = logging.getLogger(__name__)

STARTS_S = 2.0
"""Seconds between two inserts into `starts`."""
SUMS_S = 10.0
"""Least seconds between two computations of sums."""
SUMS_SHARE = 0.005
"""Largest share of the time that computing sums takes: with many trajectories it is done less often."""
SUMS_MOST_S = 600.0
"""Most seconds between two computations, however long they take, as on a busy machine."""
SUMS_RECORD_S = 1e-5
"""Seconds that a computation takes longer for a further record of `rewards` or `trajectories`, as measured with 84,000
in one version. Without it a computation in a burst takes many times its share."""


def sums_interval_s(took_s: float, waiting: int) -> float:
    """Returns the seconds from the begin of a computation of sums that took ``took_s`` to that of the next one, for
    which ``waiting`` records of `rewards` and `trajectories` have been inserted since."""
    return min(max(SUMS_S, (took_s + waiting * SUMS_RECORD_S) / SUMS_SHARE), SUMS_MOST_S)


def versions_of(rows: pa.Table) -> dict[str, set[int]]:
    """Returns the policy versions of an insert into `rewards` or `trajectories` by run, without what has none."""
    found = defaultdict[str, set[int]](set)
    for pair in rows.select(["run", "oldest_version"]).group_by(["run", "oldest_version"]).aggregate([]).to_pylist():
        if pair["run"] and pair["oldest_version"] is not None:
            found[pair["run"]].add(pair["oldest_version"])
    return found


class ComputedTables:
    """What must be computed after the sink's inserts, and the task that does it."""

    def __init__(self, database: RetryingClient) -> None:
        self._database = database
        self._starts: list[pa.Table] = []
        self._versions = defaultdict[str, set[int]](set)
        self._is_complete = False
        self._sums_begun = -SUMS_MOST_S  # so the first one is due at once
        self._sums_took_s = 0.0
        self._waiting = 0
        self._busy = asyncio.Lock()

    def inserted(self, table: Table, rows: pa.Table) -> None:
        """Note what must be computed because ``rows`` were inserted into ``table``."""
        if table is EVENTS and (starts := starts_of(rows)).num_rows:
            self._starts.append(starts)
        elif table in (REWARDS, TRAJECTORIES):
            self._waiting += rows.num_rows
            for run, versions in versions_of(rows).items():
                self._versions[run] |= versions

    async def run(self, stop: asyncio.Event) -> None:
        """Compute what is due, until ``stop`` is set. What fails is tried again."""
        while not stop.is_set():
            due = self._sums_begun + sums_interval_s(self._sums_took_s, self._waiting)
            await self._compute(sums=monotonic() >= due)
            with suppress(TimeoutError):
                async with asyncio.timeout(STARTS_S):
                    await stop.wait()

    async def finish(self) -> None:
        """Compute everything that waits."""
        await self._compute(sums=True)

    async def _compute(self, *, sums: bool) -> None:
        async with self._busy:
            if not self._is_complete:
                self._is_complete = await self._try(compute_missing)
            await self._insert_starts()
            if sums and self._versions:
                await self._recompute()

    async def _insert_starts(self) -> None:
        if not (taken := self._starts):
            return
        self._starts = []
        try:
            await self._database.insert_once(STARTS, pa.concat_tables(taken), f"starts:{time.time_ns()}")
        except (ClickHouseError, OSError) as error:
            log.warning("the starts of trajectories were not written, trying again: %s", error)
            self._starts = taken + self._starts

    async def _recompute(self) -> None:
        taken, self._versions, self._waiting = self._versions, defaultdict(set), 0
        self._sums_begun = monotonic()
        for run, versions in taken.items():
            if not await self._try(recompute, run, versions):
                self._versions[run] |= versions
        self._sums_took_s = monotonic() - self._sums_begun

    async def _try(self, compute: Callable[..., None], *arguments: Any) -> bool:
        try:
            await self._database.call_once(compute, *arguments)
        except (ClickHouseError, OSError) as error:
            log.warning("starts or sums of rewards were not computed, trying again: %s", error)
            return False
        return True
