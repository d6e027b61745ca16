"""What a run is doing, and whether a page is up to date, in a real browser."""

import os
import signal
import sys
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from headrace.deploy.system.children import Child, Command
from headrace.deploy.system.ports import HOST, free_port
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_feed import served_with_silent_clickhouse
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.deploy.dashboard.test_panels import panel

NOW = 1_790_000_000_000
RUNNING: dict[str, Any] = {
    "step": 12, "last_step_ms": NOW - 10_000, "step_s": 5.0, "wait_share": 0.2, "groups_granted": 16,
    "groups_per_step": 8, "groups_ready": 3, "last_trajectory_ms": NOW - 1_000, "outage": "",
}  # fmt: skip
STATES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "busy", "step 12, 10 s ago"),
    ({"wait_share": 0.8}, "starving", "80 % of the last steps' time"),
    ({"last_step_ms": NOW - 40_000}, "starving", "no step for 40 s: 3 of 8 groups of the next step are ready"),
    (
        {"last_step_ms": NOW - 400_000, "last_trajectory_ms": NOW - 390_000},
        "starving",
        "no step for 7 min: no trajectory for 7 min; do the samplers run?",
    ),
    ({"last_step_ms": NOW - 40_000, "step_s": 60.0}, "busy", "step 12, 40 s ago"),
    ({"last_step_ms": NOW - 100_000, "groups_ready": 9}, "stuck", "9 groups are ready and no step was made for 100 s"),
    ({"outage": "the disk is full"}, "paused", "the trainer waits: the disk is full"),
    ({"groups_granted": 0}, "finished", "the last step is trained, 10 s ago"),
    ({"groups_granted": 0, "groups_ready": 9, "last_step_ms": NOW - 10**7}, "finished", "3 h ago"),
    ({"step": 0, "last_step_ms": 0, "groups_granted": None}, "quiet", "no trainer; last trajectory 1 s ago"),
    ({"step": 0, "last_step_ms": 0, "wait_share": None, "step_s": None}, "starving", "no step yet: 3 of 8 groups"),
]


@pytest.mark.browser
@needs_chromium
def test_finished_paused_starving_busy_and_stuck_are_told_apart() -> None:
    with served(f"http://{HOST}:{free_port()}") as url, browser_page() as (page, _):
        page.goto(url)
        for changed, state, words in STATES:
            found = page.evaluate("([facts, now]) => runState(facts, now)", [RUNNING | changed, NOW])
            assert found[0] == state, (changed, found)
            assert words in found[1]


@pytest.mark.clickhouse
def test_a_step_of_a_clock_that_was_ahead_is_not_the_last_one(dashboard: str, clickhouse: str) -> None:
    """A trainer whose clock was a day ahead for one step would be busy for a day, whatever became of it."""
    client = open_client(clickhouse)
    for offset, time in ((1, "now64(3) - INTERVAL 1 HOUR"), (2, "now64(3) + INTERVAL 1 DAY"), (3, "now64(3) - 400")):
        client.command(
            "INSERT INTO steps (id_sent, time, run, step, offset) "
            f"SELECT 's{offset}', {time}, 'set-back', {offset}, {offset}"
        )
    client.command("INSERT INTO training (id_sent, time, run, group_id) SELECT 'g', now64(3), 'set-back', 'g'")
    client.command(
        "INSERT INTO alerts (id_sent, time, run, kind, message) "
        "SELECT 'a', now64(3), 'set-back', 'object_store_unavailable', 'the store is away'"
    )
    (found,) = panel(dashboard, "activity", run="set-back")
    assert (found["step"], found["groups_ready"], found["outage"]) == (3, 1, "the store is away")
    assert 390 < time_ns() / 1e9 - found["last_step_ms"] / 1000 < 500


@pytest.mark.browser
@needs_chromium
def test_a_page_tells_what_is_old() -> None:
    feed = {
        "seenAt": NOW - 1_000,
        "seenClock": NOW - 1_000,
        "slowS": 0,
        "closed": False,
        "expired": False,
        "refused": False,
        "pulse": {"at": NOW - 500, "clickhouse_s": 0.5, "sink_s": 1.2},
    }
    silent = {"at": NOW - 500, "clickhouse_s": 0.5, "sink_s": 59.5}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "live", "live"),
        ({"seenAt": 0}, "connecting", "connecting"),
        ({"slowS": 3.5}, "slow", "ClickHouse has not answered for 4 s; the figures are of"),
        ({"seenAt": 0, "slowS": 3}, "slow", "ClickHouse has not answered for 3 s"),
        ({"seenAt": NOW - 5_000, "pulse": None}, "lost", "nothing from the dashboard for 5 s; the figures are of"),
        ({"seenAt": NOW - 5_000}, "live", "live"),
        ({"pulse": silent | {"clickhouse_s": 3.5}}, "slow", "ClickHouse has not answered for 4 s; the figures are of"),
        ({"closed": True}, "lost", "the dashboard does not answer, retrying"),
        (
            {"pulse": silent},
            "live",
            "live, but the sink has written nothing to ClickHouse for 60 s: does it run",
        ),
        ({"pulse": silent | {"sink_s": None}}, "live", "live"),
        ({"still": True, "seenAt": NOW - 10**6}, "live", "read, "),
        (
            {"still": True, "pulse": {**silent, "at": NOW - 6_000}},
            "lost",
            "nothing from the dashboard for 6 s; read at",
        ),
        ({"expired": True}, "lost", "this link has expired"),
    ]
    with served(f"http://{HOST}:{free_port()}") as url, browser_page() as (page, _):
        page.goto(url)
        for changed, state, words in cases:
            found = page.evaluate("([feed, now]) => feedState(feed, now)", [feed | changed, NOW])
            assert found[0] == state, (changed, found)
            assert words in found[1]


@pytest.mark.browser
@needs_chromium
def test_a_clickhouse_that_hangs_is_shown() -> None:
    with served_with_silent_clickhouse() as url, browser_page() as (page, _):
        page.goto(url)
        page.wait_for_selector("#state[data-state=slow]", timeout=10_000)
        assert "ClickHouse has not answered" in page.locator("#state").inner_text()


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize("set_s", [0, -3600])
def test_a_dashboard_that_stands_still_is_shown_and_so_is_its_return(
    dashboard: str, clickhouse_reader: str, tmp_path: Path, set_s: int
) -> None:
    """Also if the clock of the browser's machine is set back meanwhile."""
    port = free_port()
    env = {
        "HEADRACE_CLICKHOUSE": clickhouse_reader, "HEADRACE_DASHBOARD_PORT": str(port), "HEADRACE_DATA": str(tmp_path),
    }  # fmt: skip
    child = Child(Command((sys.executable, "-m", "headrace.deploy.cli", "worker", "dashboard"), env), tmp_path / "log")
    try:
        with browser_page() as (page, _):
            for _ in range(100):
                try:
                    page.goto(f"http://{HOST}:{port}")
                    break
                except Exception:  # noqa: BLE001 - it is not ready yet
                    page.wait_for_timeout(200)
            page.wait_for_selector("#state[data-state=live]")
            page.evaluate("ms => { const now = Date.now; Date.now = () => now() + ms; }", 1000 * set_s)
            os.kill(child.pid, signal.SIGSTOP)
            page.wait_for_selector("#state[data-state=lost]", timeout=10_000)
            assert "nothing from the dashboard for" in page.locator("#state").inner_text()
            os.kill(child.pid, signal.SIGCONT)
            page.wait_for_selector("#state[data-state=live]")
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.stop()


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_the_page_says_what_its_run_is_doing(dashboard: str, clickhouse: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        page.wait_for_selector(", ".join(f"#doing[data-doing={state}]" for state in ("busy", "starving", "stuck")))
        open_client(clickhouse).command(
            "INSERT INTO budget (id_sent, time, run, version, groups_per_step, max_steps_ahead, max_groups) "
            "SELECT 'end', now64(3), 'rising', 99, 8, 1, 0"
        )
        page.wait_for_selector("#doing[data-doing=finished]")
        page.goto(f"{dashboard}/trainer?run=rising")
        page.wait_for_selector("#doing[data-doing=finished]")
        page.goto(f"{dashboard}/?run=")
        page.wait_for_selector("#state[data-state=live]")
        assert page.locator("#doing").is_hidden(), "all runs together have no state"
        assert complaints == []
