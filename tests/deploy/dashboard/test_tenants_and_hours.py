"""Rewards by tenant and by hour, on the page and in the views, against means computed here."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import pytest

from headrace.deploy.dashboard.slices import NONE
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.panel_rows import panel_rows
from tests.deploy.dashboard.uneven_run import ELEVEN_MS, HOUR_MS, MAXIMUM, RUN, TENANTS, Attempt, fill_uneven_run

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.clickhouse

HOURS = tuple(datetime.fromtimestamp((ELEVEN_MS - before) / 1000, UTC) for before in (HOUR_MS, 0))


@pytest.fixture(scope="module")
def stored(clickhouse: str) -> Iterator[tuple["Client", list[Attempt]]]:
    """A client of a ClickHouse with the run, and its attempts."""
    client = open_client(clickhouse)
    yield client, fill_uneven_run(client)
    client.close()


def hour(attempt: Attempt) -> datetime:
    return HOURS[attempt.ended_ms >= ELEVEN_MS]


def rewards(attempts: Iterable[Attempt], key: Callable[[Attempt], Hashable]) -> dict[Hashable, list[float]]:
    """Returns the rewards by ``key``, of which no two have the same mean."""
    found = defaultdict[Hashable, list[float]](list)
    for each in attempts:
        found[key(each)].append(each.reward)
    assert len({round(fmean(each), 6) for each in found.values()}) == len(found)
    return found


def test_the_page_splits_the_reward_by_tenant(stored: tuple["Client", list[Attempt]]) -> None:
    client, attempts = stored
    expected = rewards(attempts, lambda each: (each.tenant or NONE, each.version))
    rows = panel_rows(client, "reward", run=RUN, by="tenant")
    found = {(row["series"], row["version"]): (row["reward"], row["trajectories"]) for row in rows}
    assert found == {key: (pytest.approx(fmean(each)), len(each)) for key, each in expected.items()}


@pytest.mark.parametrize("tenant", TENANTS)
def test_the_page_cut_to_a_tenant_has_its_rewards_alone(stored: tuple["Client", list[Attempt]], tenant: str) -> None:
    client, attempts = stored
    expected = rewards((each for each in attempts if each.tenant == tenant), lambda each: each.version)
    rows = panel_rows(client, "reward", run=RUN, tenant=tenant or NONE)
    found = {row["version"]: (row["reward"], row["trajectories"]) for row in rows}
    assert found == {key: (pytest.approx(fmean(each)), len(each)) for key, each in expected.items()}


def test_the_view_groups_rewards_by_tenant_and_by_the_hour_in_which_trajectories_ended(
    stored: tuple["Client", list[Attempt]],
) -> None:
    client, attempts = stored
    expected = rewards(attempts, lambda each: (each.tenant, hour(each), each.version))
    rows = client.query(
        "SELECT tenant, toUnixTimestamp(hour), version, trajectories, scored, mean, deviation, mean_normalised "
        f"FROM reward_by_hour WHERE run = '{RUN}'"
    ).result_rows
    assert {(tenant, datetime.fromtimestamp(at, UTC), version): tuple(row) for tenant, at, version, *row in rows} == {
        key: pytest.approx((len(each), len(each), MAXIMUM * fmean(each), MAXIMUM * stdev(each), fmean(each)), rel=1e-6)
        for key, each in expected.items()
    }
    assert len(rows) == len(expected) == 2 * 3 * 6


@pytest.mark.parametrize(
    ("column", "key"),
    [("tenant", lambda each: each.tenant), ("toUnixTimestamp(hour)", lambda each: hour(each).timestamp())],
    ids=["tenant", "hour"],
)
def test_sums_over_the_view_are_the_means_of_a_tenant_and_of_an_hour(
    stored: tuple["Client", list[Attempt]], column: str, key: Callable[[Attempt], Hashable]
) -> None:
    client, attempts = stored
    found = client.query(
        f"SELECT {column} AS key, sum(mean_normalised * trajectories) / sum(trajectories) FROM reward_by_hour "
        f"WHERE run = '{RUN}' GROUP BY key"
    ).result_rows
    assert dict(found) == {name: pytest.approx(fmean(each)) for name, each in rewards(attempts, key).items()}


def test_components_are_grouped_by_tenant_and_hour_too(stored: tuple["Client", list[Attempt]]) -> None:
    client, attempts = stored
    expected = rewards(attempts, lambda each: (each.tenant, hour(each).timestamp(), each.version))
    rows = client.query(
        "SELECT component, tenant, toUnixTimestamp(hour), version, trajectories, mean, mean_weight "
        f"FROM components_by_hour WHERE run = '{RUN}'"
    ).result_rows
    found = {(component, (tenant, at, version)): tuple(row) for component, tenant, at, version, *row in rows}
    assert found == {
        (component, key): pytest.approx((len(each), share * fmean(each), weight))
        for component, share, weight in (("right", 1, 1.0), ("short", 0.5, 2.0))
        for key, each in expected.items()
    }
