"""The panels of the page of the monitors' alerts, from records as the sink writes them."""

from math import log1p
from typing import TYPE_CHECKING

import pytest

from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.watch import Lane, Reading, Readings
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.panel_rows import panel_rows
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.clickhouse

RUN = "watched"


def store_alert(client: "Client", monitor: str, value: float, usual: float) -> None:
    """An open alert of ``monitor``, and the reading of its last window."""
    log = StoredLog()
    episode = Episode(
        id=f"e-{monitor}", monitor=monitor, state=EpisodeState.OPENED, agent="a", task_source="s", since_ms=NOW_MS
    )
    details = {"lane": "attempt", "window": 30, "value": value, "expected": usual}
    alert = Alert(run=RUN, source="watch", kind=f"monitor_{monitor}", message="More.", details=details, episode=episode)
    log.add("alerts", RUN, alert, id=f"alert-{monitor}")
    reading = Reading(value=value, expected=usual, trajectories=64, strength=1.2)
    readings = Readings(
        lane=Lane.ATTEMPT,
        run=RUN,
        agent="a",
        task_source="s",
        spec="",
        window=30,
        trajectories=64,
        first_version=30,
        last_version=30,
        since_ms=NOW_MS - 1000,
        until_ms=NOW_MS,
        readings={monitor: reading},
    )
    log.add("monitors", RUN, readings, id=f"readings-{monitor}")
    log.write(client, f"watched-{monitor}")


@pytest.mark.parametrize(
    ("monitor", "value", "usual", "shown"),
    [
        ("tokens", log1p(512), log1p(350), (512, 350)),
        ("feedback_delay", log1p(90), log1p(30), (90, 30)),
        ("talks", 0.25, 0.05, (0.25, 0.05)),
    ],
)
def test_readings_are_shown_in_the_unit_of_what_is_measured(
    clickhouse: str, monitor: str, value: float, usual: float, shown: tuple[float, float]
) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    store_alert(client, monitor, value, usual)
    for panel in ("episodes", "readings"):
        rows = panel_rows(client, panel, "/watch", run=RUN)
        (row,) = [each for each in rows if each["episode"] == f"e-{monitor}"]
        assert (row["value"], row["expected"]) == pytest.approx(shown), panel
    client.close()
