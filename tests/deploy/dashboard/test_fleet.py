"""The fleet page: who sends what cannot be read, who drops events, who is behind."""

import os
from typing import Any

import pytest

from headrace.deploy.dashboard.fleet_panels import REPAIRS
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import trainer_group
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.faulty_fleet import fill_fleet
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.deploy.dashboard.test_panels import panel

pytestmark = pytest.mark.clickhouse


@pytest.fixture(scope="module")
def fleet(dashboard: str, clickhouse: str) -> str:
    """The dashboard of a fleet with faults."""
    client = open_client(clickhouse)
    fill_fleet(client)
    client.close()
    return dashboard


def rows(dashboard: str, name: str, run: str = "") -> list[dict[str, Any]]:
    return panel(dashboard, name, run=run, page="/fleet")


def test_open_dead_letters_name_their_producer_who_is_hurt_and_what_helps(fleet: str) -> None:
    found = {(row["error"], row["producer"]): row for row in rows(fleet, "dead_letters")}
    bad = found["bad_json", "checkout <b>v2</b>"]
    assert (bad["records"], bad["trajectories"]) == (2, 2), "without the one that was sent again"
    assert bad["repair"] == "headrace dead-letters list --open --error bad_json, then repair and redrive"
    assert found["late", ""]["repair"] == "headrace dead-letters redrive --error late --all"


def test_every_repair_is_of_an_error_that_exists() -> None:
    assert REPAIRS.keys() <= set(DeadLetterError)


def test_the_newest_counts_of_each_sender_are_shown_losses_first(fleet: str) -> None:
    first, *others = rows(fleet, "sdks")
    assert (first["source"], first["dropped_"], first["reasons"]) == ("losing", 8, "queue_full: 6, oversize: 2")
    assert first["emitted_"] == first["sent_"] + first["queued_"] + first["spooled_"] + first["dropped_"]
    assert "calm" in {row["source"] for row in others}


def test_a_gateways_rates_are_those_between_its_reports_also_across_a_restart(fleet: str) -> None:
    first, second = rows(fleet, "gateways")
    assert [first["source"], second["source"]] == ["/gw/b", "/gw/a"], "losses first"
    assert first["holes_"] == 4
    assert second["calls_a_second"] == pytest.approx((120 + 30) / 60, rel=0.05)
    assert second["errors_a_second"] == pytest.approx(3 / 60, rel=0.05)
    assert (second["sessions_"], second["unacknowledged_"], second["engines_"]) == (1, 2, "e1: 1, e2: 0")


def test_what_was_measured_by_a_clock_that_was_ahead_does_not_hide_what_is(fleet: str) -> None:
    """A clock was a day ahead for a moment: what was measured then would be the newest for a day."""
    groups = {row["consumer_group"]: row for row in rows(fleet, "groups")}
    assert (groups["set-back"]["behind_s"], groups["set-back"]["records"]) == (1.0, 5)
    for name, page in (("lag_s", "/fleet"), ("lag", "")):
        drawn = [row["seconds"] for row in panel(fleet, name, page=page) if row["consumer_group"] == "set-back"]
        assert drawn == [1.0]
    assert {row["source"]: row["holes_"] for row in rows(fleet, "gateways")}["/gw/b"] == 4


def test_what_a_finished_run_has_not_trained_is_no_lag(fleet: str) -> None:
    assert {row["consumer_group"] for row in rows(fleet, "groups") if "trainer" in row["consumer_group"]} == {
        trainer_group("going")
    }
    for name, page in (("lag_s", "/fleet"), ("lag", "")):
        drawn = {row["consumer_group"] for row in panel(fleet, name, page=page)}
        assert trainer_group("going") in drawn
        assert trainer_group("ended") not in drawn


def test_engines_are_compared_with_the_newest_version_of_their_run(fleet: str) -> None:
    found = {(row["engine"], row["run"]): row for row in rows(fleet, "engines")}
    assert (found["slow", "rising"]["behind"], found["slow", "rising"]["slowest_s"]) == (7, 1.5)
    assert found["vllm", "rising"]["behind"] == 0
    assert {row["run"] for row in rows(fleet, "engines", run="rising")} == {"rising"}


def test_lag_is_in_seconds_and_rates_are_by_topic(fleet: str) -> None:
    groups = {row["consumer_group"]: row for row in rows(fleet, "groups")}
    assert groups["sink"]["behind_s"] == pytest.approx(groups["sink"]["records"] / 50)
    topics = {row["topic"]: row for row in rows(fleet, "topics")}
    assert topics["dead-letters"]["records"] >= 4
    assert topics["events"]["a_minute"] == pytest.approx(topics["events"]["records"] / 15, abs=0.05)


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_the_page_shows_the_faults(fleet: str, width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, complaints):
        page.goto(f"{fleet}/fleet")
        page.wait_for_selector("#dead_letters table.list")
        page.wait_for_selector("#lag_s canvas")
        text = page.locator("main").inner_text()
        assert "checkout <b>v2</b>" in text
        assert "headrace dead-letters redrive --error late --all" in text
        assert page.locator("#tiles .tile[data-warning]").count() >= 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=f"{folder}/fleet-{width}-{scheme}.png", full_page=True)
        assert complaints == []
