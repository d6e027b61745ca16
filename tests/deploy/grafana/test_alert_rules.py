"""Alert rules over the rows that they are about: those in which they must alarm, and those in which they must not."""

from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.grafana.test_files import alarms

pytestmark = pytest.mark.clickhouse


@pytest.fixture
def empty(clickhouse: str) -> Iterator[Client]:
    """A ClickHouse whose tables have none of the rows that these rules read."""
    opened = open_client(clickhouse)
    ensure_tables(opened)
    for table in ("sinks", "lag", "trajectories", "rewards"):
        opened.command(f"TRUNCATE TABLE {table}")
    yield opened
    opened.close()


def test_a_silent_sink_alarms_and_one_that_only_measures_lag_is_silent(empty: Client) -> None:
    """The lag is measured beside the main loop: its rows continue while nothing else is written."""
    assert not alarms(empty, "headrace-sink-silent"), "no sink has ever written"

    def sign(sink: str, seconds_ago: int) -> None:
        empty.command(f"INSERT INTO sinks (sink, time) SELECT '{sink}', now64(3) - INTERVAL {seconds_ago} SECOND")

    sign("sink/a", 30)
    assert not alarms(empty, "headrace-sink-silent"), "for less than a minute"
    empty.command("TRUNCATE TABLE sinks")
    sign("sink/a", 90)
    empty.command("INSERT INTO lag (time, consumer_group, topic) SELECT now64(3), 'sink', 'events'")
    assert alarms(empty, "headrace-sink-silent")
    sign("sink/b", 1)
    assert not alarms(empty, "headrace-sink-silent"), "another one writes"
    empty.command("TRUNCATE TABLE sinks")
    sign("sink/a", 30 * 24 * 3600)
    assert alarms(empty, "headrace-sink-silent"), "it stays silent for longer than any lag is kept"


def evaluated(
    client: Client, run: str, evaluation: str, means: dict[int, float], *, each: int = 40, **row: str
) -> None:
    """Insert ``each`` trajectories of an evaluation for each version, with rewards 0.1 above and 0.1 below its mean."""
    purpose, ended = row.get("purpose", "evaluate"), row.get("ended", "now64(3)")
    for version, mean in means.items():
        id = f"concat('{run}-{evaluation}-{version}-', toString(number))"
        client.command(
            "INSERT INTO trajectories (id_sent, logged_at, time, run, trajectory_id, evaluation, oldest_version) "
            f"SELECT {id}, now64(3), now64(3), '{run}', {id}, '{evaluation}', {version} FROM numbers({each})"
        )
        client.command(
            "INSERT INTO rewards (id_sent, time, ended_at, trajectory_id, run, purpose, oldest_version, normalised) "
            f"SELECT {id}, now64(3), {ended}, {id}, '{run}', '{purpose}', {version}, "
            f"{mean} + if(number % 2 = 0, 0.1, -0.1) FROM numbers({each})"
        )


def test_a_held_out_evaluation_that_falls_alarms_and_what_only_looks_like_it_does_not(empty: Client) -> None:
    def alarmed() -> bool:
        return alarms(empty, "headrace-held-out")

    evaluated(empty, "rises", "held-out", {0: 0.3, 10: 0.6, 20: 0.7})
    assert not alarmed()
    evaluated(empty, "wavers", "held-out", {0: 0.3, 10: 0.6, 20: 0.55})
    assert not alarmed(), "by less than 0.1"
    evaluated(empty, "two-sets", "easy", {0: 0.9})
    evaluated(empty, "two-sets", "hard", {10: 0.2})
    assert not alarmed(), "another evaluation is no earlier one"
    evaluated(empty, "few", "held-out", {0: 0.9, 10: 0.2}, each=20)
    assert not alarmed(), "too few to tell"
    evaluated(empty, "trained", "", {0: 0.9, 10: 0.2}, purpose="train")
    assert not alarmed(), "training rewards have a rule of their own"
    evaluated(empty, "old", "held-out", {0: 0.9, 10: 0.2}, ended="now64(3) - INTERVAL 2 DAY")
    assert not alarmed(), "it has ended"
    evaluated(empty, "recovers", "held-out", {0: 0.6, 10: 0.3, 20: 0.6})
    assert not alarmed(), "the newest version is as good as the best"
    evaluated(empty, "falls", "held-out", {0: 0.3, 10: 0.7, 20: 0.5})
    assert alarmed()
