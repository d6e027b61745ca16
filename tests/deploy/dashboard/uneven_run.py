"""A run whose versions, tenants and hours have different rewards and numbers of trajectories, around the 30 that are
enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from clickhouse_connect.driver.client import Client

from headrace.streams.clickhouse.columns import Row, arrow_table
from headrace.streams.clickhouse.database import insert
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.tables import REWARDS, TRAJECTORIES
from tests.streams.clickhouse.stored_log import NOW_MS

RUN = "uneven"
COUNTS = (30, 29, 30, 40, 12, 60)
"""Trajectories of each version."""
TENANTS = {"red": 0.05, "blue": 0.2, "": 0.35}
"""Tenant → what its rewards are larger by."""
MAXIMUM = 2.0
HOUR_MS = 3_600_000
ELEVEN_MS = 1_772_362_800_000
"""2026-03-01 11:00 UTC: half of the trajectories end then, the others a millisecond earlier."""


@dataclass(frozen=True)
class Attempt:
    """A trajectory with its reward, as a share of the largest."""

    id: str
    version: int
    tenant: str
    ended_ms: int
    reward: float


def attempts() -> Iterator[Attempt]:
    """Yields the attempts."""
    for version, count in enumerate(COUNTS):
        for number in range(count):
            tenant, late = tuple(TENANTS)[number % 3], number // 3 % 2
            reward = 0.0817 * version + TENANTS[tenant] + 0.1 * late + 0.0011 * number
            yield Attempt(f"u{version}-{number}", version, tenant, ELEVEN_MS - 1 + late, reward)


def stored(attempt: Attempt) -> tuple[Row, Row]:
    """Returns the rows of an attempt in `trajectories` and `rewards`."""
    both = {
        "time": NOW_MS, "logged_at": NOW_MS, "offset": 0, "trajectory_id": attempt.id, "run": RUN, "agent": "a",
        "task_id": attempt.id, "tenant": attempt.tenant, "purpose": "train", "role": "trainable",
        "oldest_version": attempt.version, "ended_at": attempt.ended_ms,
    }  # fmt: skip
    components = {"right": attempt.reward, "short": attempt.reward / 2}
    reward = {
        "spec": "s@1", "total": MAXIMUM * attempt.reward, "maximum": MAXIMUM, "normalised": attempt.reward,
        "components": list(components.items()), "weights": [("right", 1.0), ("short", 2.0)],
    }  # fmt: skip
    return {**both, "id_sent": f"t-{attempt.id}"}, {**both, **reward, "id_sent": f"r-{attempt.id}"}


def fill_uneven_run(client: Client) -> list[Attempt]:
    """Write the run to the tables. Returns its attempts."""
    ensure_tables(client)
    written = list(attempts())
    rows = [stored(each) for each in written]
    for table, of in ((TRAJECTORIES, 0), (REWARDS, 1)):
        insert(client, table, arrow_table(table, [both[of] for both in rows]), f"uneven:{table.name}")
    compute_missing(client)
    return written
