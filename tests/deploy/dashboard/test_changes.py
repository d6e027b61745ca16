"""Panels are queried again only if their tables have changed."""

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.deploy.dashboard import snapshots as snapshots_module
from headrace.deploy.dashboard.changes import (
    MAX_AGE_S,
    MAX_REST_S,
    CachedPanel,
    cache_panel,
    is_current,
    is_resting,
    read_versions,
    tables_of,
)
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import Columns, Panel, read_panel
from headrace.deploy.dashboard.selection import selection
from headrace.deploy.dashboard.snapshots import PageSnapshots, Snapshot
from headrace.streams.clickhouse.database import open_client

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

PANEL = Panel("steps", "", "SELECT count() FROM steps")
RECENT = Panel("recent", "", "SELECT count() FROM steps WHERE time > now64(3) - INTERVAL 1 MINUTE", window_s=60)


def kept(versions: Mapping[str, int], read_at: float = 0.0, changed_at: float = 0.0) -> CachedPanel:
    return CachedPanel({"count()": [1]}, versions, read_at, changed_at)


@pytest.mark.parametrize(
    ("panel", "versions", "now", "current"),
    [
        (PANEL, {"steps": 1}, 5.0, True),
        (PANEL, {"steps": 1, "events": 7}, 5.0, True),
        (PANEL, {"steps": 2}, 5.0, False),
        (PANEL, {}, 5.0, False),
        (PANEL, {"steps": 1}, MAX_AGE_S - 0.1, True),
        (PANEL, {"steps": 1}, MAX_AGE_S, False),
        (RECENT, {"steps": 1}, 4.9, True),
        (RECENT, {"steps": 1}, 5.0, False),
        (RECENT, {"steps": 1}, 59.9, False),
        (RECENT, {"steps": 1}, 60.0, True),
        (RECENT, {"steps": 2}, 60.0, False),
        (RECENT, {"steps": 2}, 0.9, False),
    ],
)
def test_a_cached_panel_is_current_until_its_tables_change_or_it_is_old(
    panel: Panel, versions: Mapping[str, int], now: float, current: bool
) -> None:
    assert is_current(panel, kept({"steps": 1}), versions, now) is current


def test_a_panel_with_unknown_versions_is_always_queried() -> None:
    assert not is_current(PANEL, cache_panel(PANEL, {}, {}, 0.0, None), {}, 1.0)


def test_a_window_counts_from_the_last_change_and_equal_columns_are_shared() -> None:
    first = cache_panel(RECENT, {"count()": [1]}, {"steps": 1}, 0.0, None)
    again = cache_panel(RECENT, {"count()": [1]}, {"steps": 1}, 10.0, first)
    assert (again.read_at, again.changed_at) == (10.0, 0.0)
    assert again.columns is first.columns
    changed = cache_panel(RECENT, {"count()": [2]}, {"steps": 2}, 20.0, again)
    assert (changed.columns, changed.changed_at) == ({"count()": [2]}, 20.0)


@pytest.mark.parametrize(
    ("took_s", "age_s", "refresh_s", "rests"),
    [
        (0.02, 2.0, 2.0, False),  # a fast panel is read at every refresh
        (0.1, 2.0, 2.0, True),
        (0.1, 8.0, 2.0, False),
        (5.0, MAX_REST_S - 0.1, 2.0, True),
        (5.0, MAX_REST_S, 2.0, False),
        (0.1, 0.5, 0.1, False),
    ],
)
def test_a_slow_panel_of_a_live_run_rests_between_queries(
    took_s: float, age_s: float, refresh_s: float, rests: bool
) -> None:
    slow = CachedPanel({}, {"steps": 1}, read_at=100.0, changed_at=100.0, took_s=took_s)
    assert is_resting(slow, 100.0 + age_s, refresh_s) is rests


def test_tables_under_views_count() -> None:
    assert tables_of("SELECT 1 FROM rewards_latest JOIN step_members USING (id)") == {"rewards", "step_members"}


def test_every_panel_reads_a_table_and_declares_its_time_window() -> None:
    for panel in (panel for page in PAGES for panel in page.panels):
        assert tables_of(panel.sql), panel.name
        minutes = [int(number) for number in re.findall(r"INTERVAL (\d+) MINUTE", panel.sql)]
        assert panel.window_s == 60 * max(minutes, default=0), panel.name
        assert ("now64" in panel.sql) == bool(minutes), panel.name


@pytest.mark.clickhouse
def test_every_table_of_a_panel_has_a_version_for_an_account_that_only_reads(
    dashboard: str, clickhouse_reader: str
) -> None:
    versions = read_versions(open_client(clickhouse_reader))
    assert {table for page in PAGES for panel in page.panels for table in tables_of(panel.sql)} <= versions.keys()


@pytest.mark.clickhouse
async def test_only_panels_whose_tables_changed_are_queried(
    dashboard: str, clickhouse: str, clickhouse_reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One part per table, so that there is no merge, which would be a change of its own.
    writer = open_client(clickhouse)
    for table in {table for panel in PAGES[0].panels for table in tables_of(panel.sql)}:
        writer.command(f"OPTIMIZE TABLE {table} FINAL")
    read: list[str] = []

    def watched(client: "Client", panel: Panel, parameters: Mapping[str, str]) -> Columns:
        read.append(panel.name)
        return read_panel(client, panel, parameters)

    now_s = 1000.0

    async def read_by(snapshots: PageSnapshots, *, after_s: float = 0.0) -> tuple[Snapshot, set[str]]:
        monkeypatch.setattr(snapshots_module, "monotonic", partial(float, now_s + after_s))
        read.clear()
        return await snapshots.snapshot("rising", selection(PAGES[0].parameters, {})), set(read)

    monkeypatch.setattr(snapshots_module, "read_panel", watched)
    snapshots = PageSnapshots(clickhouse_reader, None, PAGES[0], refresh_s=0)
    try:
        first, every = await read_by(snapshots)
        assert every == {panel.name for panel in PAGES[0].panels}
        # Rows leave the last minute and the last ten minutes: these are queried again in steps of a twelfth.
        recent, none = {panel.name for panel in PAGES[0].panels if panel.window_s}, set[str]()
        assert recent == {"pace", "lag"}
        for after_s, queried in ((4.5, none), (5.5, {"pace"}), (6, none), (49.5, {"pace"}), (50.5, {"lag"})):
            second, again = await read_by(snapshots, after_s=after_s)
            assert again == queried, after_s
            assert second is first
        writer.command(
            "INSERT INTO alerts (id_sent, run, part, kind, message) SELECT 'n', 'rising', 'sink', 'k', 'new'"
        )
        third, again = await read_by(snapshots, after_s=50.6)
        assert again == {"alerts", "activity"}
        assert "new" in third["panels"]["alerts"]["message"]
        assert third["panels"]["reward"] is first["panels"]["reward"]
        # Nothing is written any more: at last each panel is read once in five minutes, those of the last minutes too.
        shown = []
        for after_s, queried in ((620, every), (621, none), (620 + MAX_AGE_S - 5, none), (621 + MAX_AGE_S, every)):
            snapshot, again = await read_by(snapshots, after_s=after_s)
            assert again == queried, after_s
            shown.append(snapshot)
        assert all(each is shown[0] for each in shown)
    finally:
        snapshots.close()


class Refusing:
    """A client whose user may not list parts, or that gets no answer."""

    def __init__(self, code: int | None) -> None:
        self.error = DatabaseError("refused", code=code)

    def query(self, sql: str) -> None:
        raise self.error


def test_without_permission_to_list_parts_every_panel_is_queried() -> None:
    assert read_versions(cast("Client", Refusing(497))) == {}


def test_a_connection_error_is_not_hidden() -> None:
    with pytest.raises(DatabaseError):
        read_versions(cast("Client", Refusing(None)))
