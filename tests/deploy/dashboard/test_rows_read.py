"""What the queries of the pages read: each table once, or as often as said here, and of a record its surroundings.

Rows read do not depend on the load of the machine, as times do. The rows are made by the fold.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.deploy.dashboard.changes import tables_of
from headrace.deploy.dashboard.group_rows import read_group
from headrace.deploy.dashboard.pages import PAGES, Page
from headrace.deploy.dashboard.panel import Panel
from headrace.deploy.dashboard.selection import selection
from headrace.deploy.dashboard.trajectory_rows import read_trajectory
from headrace.deploy.dashboard.version_rows import read_version
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.benchmarks.folded_rows import RUN, VERSIONS, copy, fill

pytestmark = pytest.mark.clickhouse

GRANULE = 8192
"""Rows that ClickHouse reads at least."""

PASSES = {
    ("", "reward_distribution"): 2.5,  # the oldest and the newest version first
    ("", "length_distribution"): 3,
    ("", "groups"): 2,  # groups that are kept are not counted as rejected
    ("", "fates"): 2,  # the pending ones are those in no other table
    ("/trainer", "now"): 2,  # waiting groups and those in flight are without a step and a rejection
    ("/compare", "lengths"): 2,  # first which tools were called
    ("/explore", "trajectories"): 2,  # those that match, and then what is shown of them
}
"""Panel → how often it reads its tables on average; others read theirs once."""

OF_SUMS = {("", "falls"): {"slice_sums"}}
"""Panel → the tables that it reads for one run that is not cut: sums that are kept, instead of what they are of."""

OF_EVENTS = {("", "pace"), ("/fleet", "topics")}
"""Panels that read `events`, of the last minutes; others find starts in a table of their own."""


class Counting:
    """A client that counts the rows that its queries read."""

    def __init__(self, client: Client) -> None:
        self.rows = 0
        self._client = client

    def query(self, *arguments: Any, **options: Any) -> Any:
        result = self._client.query(*arguments, **options)
        self.rows += int(result.summary["read_rows"])
        return result


@pytest.fixture(scope="module")
def client(clickhouse: str) -> Iterator[Client]:
    """10,000 trajectories with 200,000 events."""
    client = open_client(clickhouse, timeout_s=300)
    ensure_tables(client)
    assert fill(client, 20_000) == 1000
    copy(client, 9)
    for table in ("events", "starts", "trajectories", "rewards", "training", "rejected", "step_members"):
        client.command(f"OPTIMIZE TABLE {table} FINAL")
    assert client.query("SELECT count(), uniqExact(trajectory_id) FROM events").result_rows == [(200_000, 10_000)]
    yield client
    client.close()


@pytest.fixture(scope="module")
def held(client: Client) -> dict[str, int]:
    """Table → its rows."""
    rows = client.query(
        "SELECT table, sum(rows) FROM system.parts WHERE active AND database = currentDatabase() GROUP BY table"
    ).result_rows
    return {str(table): int(count) for table, count in rows}


@pytest.mark.parametrize(
    ("page", "panel"),
    [
        pytest.param(page, panel, id=f"{page.path or '/'}-{panel.name}")
        for page in PAGES
        for panel in page.panels
        if not panel.source
    ],
)
def test_a_panel_reads_its_tables_once(client: Client, held: dict[str, int], page: Page, panel: Panel) -> None:
    sides = {f"{side}_run": RUN for side in "ab"}
    counting = Counting(client)
    counting.query(panel.sql, parameters=selection(page.parameters, {"run": RUN, **sides}))
    name = (page.path, panel.name)
    read = {table: held.get(table, 0) for table in OF_SUMS.get(name, tables_of(panel.sql))}
    events = read.pop("events", 0)
    assert not events or name in OF_EVENTS
    assert counting.rows <= events + PASSES.get(name, 1) * sum(read.values()) + GRANULE


def test_a_trajectorys_page_reads_the_neighbourhood_of_its_events(client: Client, held: dict[str, int]) -> None:
    ((id, group),) = client.query(
        "SELECT trajectory_id, group_id FROM trajectories ORDER BY cityHash64(trajectory_id) LIMIT 1"
    ).result_rows
    counting: Any = Counting(client)
    assert len(read_trajectory(counting, id).events) == 20
    # Its size and its events, each at most at the border of two granules, and the tables by other keys.
    assert counting.rows <= 4 * GRANULE + 2 * held["trajectories"] + held["rewards"] + held["feedback"]
    counting.rows = 0
    assert id in read_group(counting, "", group).ids
    # Whole tables by other keys, and its members in another, at most at the border of two granules.
    assert counting.rows <= 2 * GRANULE + sum(
        held[name] for name in ("trajectories", "rewards", "training", "step_members", "rejected")
    )


def test_a_versions_page_reads_each_table_at_most_twice(client: Client, held: dict[str, int]) -> None:
    counting: Any = Counting(client)
    assert read_version(counting, RUN, VERSIONS // 2)["sampled_of"] > 0
    tables = ("trajectories", "rewards", "rejected", "step_members")
    assert counting.rows <= 2 * sum(held[name] for name in tables)
