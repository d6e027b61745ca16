"""A dashboard with seeded tables."""

from collections.abc import Iterator

import pytest

from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.seed import seed_run, seed_start
from tests.deploy.dashboard.served import served


@pytest.fixture(scope="module")
def dashboard(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """The address of a dashboard with two runs, and one that has only begun."""
    client = open_client(clickhouse)
    seed_run(client, "rising", versions=12)
    seed_run(client, "other <b>run</b>", versions=3, seed=1)
    seed_start(client, "begun")
    client.close()
    with served(clickhouse_reader) as url:
        yield url
