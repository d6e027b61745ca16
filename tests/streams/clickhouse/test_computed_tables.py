"""The tables that are computed from others: what waits for it, what a crash loses and a start finds again."""

import asyncio
from collections.abc import Callable, Iterator
from time import time
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

from headrace.schemas.events import TrajectoryStarted
from headrace.streams.clickhouse import computed_tables
from headrace.streams.clickhouse.columns import Row, Table, arrow_table
from headrace.streams.clickhouse.computed_tables import ComputedTables, sums_interval_s, versions_of
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.slice_sums import recompute
from headrace.streams.clickhouse.starts import starts_of
from headrace.streams.clickhouse.tables import EVENTS, REWARDS, STARTS, TRAJECTORIES

NOW_MS = int(time() * 1000)


def event(name: str, sequence: int = 0, type: str = TrajectoryStarted.TYPE) -> Row:
    """A row of `events`: the start of the trajectory ``name``, unless ``type`` says otherwise."""
    started = {"started_run": "r", "started_group_id": "g", "started_purpose": "train"} if not sequence else {}
    place = {"id_sent": f"{name}-{sequence}", "logged_at": NOW_MS, "offset": sequence, "trajectory_id": name}
    return {**place, "seq": sequence, "type": type, **started}


def events(*names: str) -> pa.Table:
    """Of each trajectory its start and a tool call."""
    rows = [row for name in names for row in (event(name), event(name, 1, "headrace.tool.called.v1"))]
    return arrow_table(EVENTS, rows)


def test_the_starts_of_a_batch_are_its_first_events_with_their_place() -> None:
    rows = starts_of(events("a", "b")).to_pylist()
    assert [(row["trajectory_id"], row["run"], row["group_id"], row["purpose"]) for row in rows] == [
        ("a", "r", "g", "train"),
        ("b", "r", "g", "train"),
    ]
    assert [row["id_sent"] for row in rows] == ["a-0", "b-0"]


def test_versions_of_a_batch_are_those_of_runs_that_have_some() -> None:
    pairs = (("r", 1), ("r", 2), ("r", 1), ("r", None), ("", 3), ("other", 0))
    rows = arrow_table(REWARDS, [{"run": run, "oldest_version": version} for run, version in pairs])
    assert versions_of(rows) == {"r": {1, 2}, "other": {0}}


class Database:
    """A database that notes what is asked of it, and fails while ``fails``."""

    def __init__(self) -> None:
        self.fails = False
        self.starts: list[str] = []
        self.recomputed: list[tuple[Any, ...]] = []

    async def insert_once(self, table: Table, rows: pa.Table, token: str) -> None:
        assert table is STARTS
        self._fail()
        self.starts += rows.column("trajectory_id").to_pylist()

    async def call_once(self, function: Callable[..., None], *arguments: Any) -> None:
        self._fail()
        self.recomputed.append((function, *arguments))

    def _fail(self) -> None:
        if self.fails:
            raise OperationalError("no answer")


def test_what_was_inserted_is_computed_together_and_what_fails_again() -> None:
    database = Database()
    tables = ComputedTables(database)  # type: ignore[arg-type]
    tables.inserted(EVENTS, events("a"))
    tables.inserted(EVENTS, events("b"))
    tables.inserted(EVENTS, arrow_table(EVENTS, [event("a", 1, "headrace.tool.called.v1")]))
    for table, version in ((REWARDS, 1), (TRAJECTORIES, 2), (REWARDS, 2)):
        tables.inserted(table, arrow_table(table, [{"run": "r", "oldest_version": version}]))

    database.fails = True
    asyncio.run(tables.finish())
    assert (database.starts, database.recomputed) == ([], [])

    database.fails = False
    tables.inserted(EVENTS, events("c"))
    asyncio.run(tables.finish())
    assert database.starts == ["a", "b", "c"]
    assert database.recomputed == [(compute_missing,), (recompute, "r", {1, 2})]
    asyncio.run(tables.finish())
    assert (len(database.starts), len(database.recomputed)) == (3, 2)


@pytest.mark.parametrize(
    ("took_s", "waiting", "expected_s"),
    [
        (0.0, 0, 10.0),
        (0.04, 500, 10.0),  # 0.045 s are less than 0.5 % of 10 s
        (0.1, 0, 20.0),
        (0.1, 20_000, 60.0),
        (5.0, 0, 600.0),
        (0.0, 10**9, 600.0),
    ],
)
def test_sums_take_at_most_their_share_of_the_time(took_s: float, waiting: int, expected_s: float) -> None:
    assert sums_interval_s(took_s, waiting) == pytest.approx(expected_s)


async def test_what_was_inserted_since_delays_the_next_computation_and_not_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first computation 20,000 rewards arrive: 0.2 s of work, which is its share of 40 s."""
    now_s, computed_at = 1000.0, list[float]()
    monkeypatch.setattr(computed_tables, "monotonic", lambda: now_s)
    monkeypatch.setattr(computed_tables, "STARTS_S", 0.0)
    database, stop = Database(), asyncio.Event()
    tables = ComputedTables(database)  # type: ignore[arg-type]
    rewards = arrow_table(REWARDS, [{"run": "r", "oldest_version": 1}]).take([0] * 20_000)
    tables.inserted(REWARDS, rewards)
    running = asyncio.create_task(tables.run(stop))
    for second in range(90):
        now_s = 1000.0 + second
        for _ in range(10):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        known = len([call for call in database.recomputed if call[0] is recompute])
        computed_at += [now_s] * (known - len(computed_at))
        if second in (1, 50):
            tables.inserted(REWARDS, rewards)
    stop.set()
    await running
    assert computed_at == [1000.0, 1040.0, 1080.0]


@pytest.fixture
def client(clickhouse: str) -> Iterator[Client]:
    client = open_client(clickhouse)
    ensure_tables(client)
    yield client
    client.close()


@pytest.mark.clickhouse
def test_starts_that_are_missing_are_found_in_events_and_none_counts_twice(client: Client) -> None:
    batch = events("a", "b", "c")
    insert(client, EVENTS, batch, "1")
    insert(client, STARTS, starts_of(events("a")), "2")
    for _ in range(2):
        compute_missing(client)
        insert(client, EVENTS, batch, "of another consumer group")
    rows = "SELECT trajectory_id, run, group_id, purpose FROM starts FINAL ORDER BY trajectory_id"
    assert client.query(rows).result_rows == [(name, "r", "g", "train") for name in "abc"]
    assert client.query("SELECT count() FROM starts").result_rows == [(3,)]
    same = (
        "SELECT count() FROM (SELECT * FROM starts FINAL) AS one "
        "INNER JOIN (SELECT * FROM events FINAL) AS other USING (id, id_text, trajectory_id, logged_at, offset)"
    )
    assert client.query(same).result_rows == [(3,)]
