"""Pages about single records, and the way from an alert to the text that caused it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page

from headrace.deploy.dashboard.version_rows import MEASURES
from headrace.deploy.dashboard.watch_panels import WATCH_PANELS
from headrace.deploy.oncall.runbook import runbook
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.hacked_run import CALM, GUILTY, HONEST, ODD, RUN, store_run
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium

pytestmark = pytest.mark.clickhouse

HACKED = "v1-tickets-1-0"


@pytest.fixture(scope="module")
def planted(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """The address of a dashboard with the planted run."""
    client = open_client(clickhouse)
    ensure_tables(client)
    objects = store_run(client)
    client.close()
    with served(clickhouse_reader, objects=objects) as url:
        yield url


def read(url: str, status: int = 200) -> dict[str, Any]:
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(record: dict[str, Any]) -> list[str]:
    return ["".join(each["text"] for each in piece["fragments"]) for piece in record["text"]["pieces"]]


def test_a_trajectory_has_its_text_and_what_became_of_it(planted: str) -> None:
    record = read(f"{planted}/api/trajectory?id={HACKED}")
    assert said(record) == [
        "<task> fix ticket 1 <agent>", "run tests <end>", "<tool> failed <agent>", f"{GUILTY} <end>",
        "<tool> all passed <agent>", f"{HONEST} <end>",
    ]  # fmt: skip
    assert (record["note"], record["tokenizer"], record["is_open"]) == ("", "planted-words", False)
    assert {each.get("version") for piece in record["text"]["pieces"] for each in piece["fragments"]} == {None, 1}
    assert record["reward"]["components"] == {"outcome": 1.0}
    assert record["reward"]["weights"] == {"outcome": 1.0}
    assert record["fate"] == {"fate": "trained", "step": 2, "version": 2}
    assert record["advantage"] == pytest.approx(0.75)
    members = record["group"]["members"]
    assert [each["reward"] for each in members] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert {each["fate"] for each in members} == {"trained"}
    assert "tripwire" in {each["monitor"] for each in record["alerts"]}
    (edit,) = (use for turn in record["text"]["turns"] for use in turn["tools"] if use["tool"] == "edit")
    assert "<script>" in edit["arguments"]


def test_sub_agents_prunes_and_summaries_stand_in_their_turns(planted: str) -> None:
    record = read(f"{planted}/api/trajectory?id=parent")
    first = record["text"]["turns"][0]
    assert [note["kind"] for note in first["notes"]] == ["subagent", "subagent", "prune", "summary"]
    assert first["notes"][0]["trajectory_id"] == "v2-shoes-0-0"
    assert first["notes"][3]["text"] == "300 → 40 tokens\nRed shoes are in the file."
    assert record["group"] is None
    assert len(record["text"]["segments"]) == 2


def test_a_rejected_trajectory_has_its_reason_and_an_unknown_one_an_explanation(planted: str) -> None:
    record = read(f"{planted}/api/trajectory?id=v0-tickets-1-0")
    assert record["fate"] == {"fate": "rejected", "stage": "group", "reason": "zero_variance_all_fail"}
    assert record["advantage"] is None
    assert "expire after 30 days" in read(f"{planted}/api/trajectory?id=nope", 404)["problem"]
    assert "1 to 512" in read(f"{planted}/api/trajectory?id=", 400)["problem"]


def test_a_trajectory_that_is_not_assembled_yet_is_shown(planted: str) -> None:
    record = read(f"{planted}/api/trajectory?id={quote(ODD, safe='')}")
    assert (record["id"], record["is_open"], record["run"]) == (ODD, True, RUN)
    assert record["labels"]["task_id"] == "<i>task</i>"
    assert record["fate"] == {"fate": "pending"}


def test_a_group_shows_where_its_attempts_part(planted: str) -> None:
    group = read(f"{planted}/api/group?id=g-1-1")
    assert (group["parts_at"], group["compared"], group["baseline"]["value"]) == (1, 8, 0.25)
    assert [each["parts_at"] for each in group["members"]] == [None, None, 1, 1, 1, 1, 1, 1]
    best, *_, worst = group["members"]
    assert best["text"][1]["text"] == f"{GUILTY} <end>"
    assert best["text"][1]["tools"][0].startswith("edit(file=")
    assert worst["text"][1]["text"] == f"{HONEST} <end>"
    assert read(f"{planted}/api/group?id=nope", 404)["problem"].startswith("ClickHouse has no trajectory of a group")


def test_a_version_lists_what_it_sampled_and_what_made_it(planted: str) -> None:
    version = read(f"{planted}/api/version?run={RUN}&version=1")
    assert version["sampled_of"] == len(version["sampled"]) == 40
    assert [each["reward"] for each in version["sampled"][:13]] == [1.0] * 12 + [0.0]
    assert version["sampled"][0]["task_source"] in ("tickets", "shoes")
    assert {each["fate"] for each in version["sampled"]} == {"trained"}
    assert {each["group_id"] for each in version["trained"]} == {"g-0-0"}
    assert all(each["step"] == 1 and each["reward"] is not None for each in version["trained"])
    nobody = read(f"{planted}/api/version?run=nope&version=1")
    assert (nobody["sampled"], nobody["step"]) == ([], None)
    assert "whole number" in read(f"{planted}/api/version?version=-1", 400)["problem"]


def test_a_version_has_the_measures_of_its_step_beside_those_of_the_step_before(planted: str) -> None:
    step = read(f"{planted}/api/version?run={RUN}&version=2")["step"]
    assert (step["step"], step["trajectories"]) == (2, 40)
    measures = {each["label"]: (each["value"], each["before"]) for each in step["measures"]}
    assert measures["Loss"] == (pytest.approx(0.2), pytest.approx(0.1))
    assert measures["Gradient norm"] == (1.5, 1.5)
    assert measures.keys() <= set(MEASURES.values())
    assert read(f"{planted}/api/version?run={RUN}&version=1")["step"]["measures"][0]["before"] is None
    assert read(f"{planted}/api/version?run={RUN}&version=0")["step"] is None


def test_without_an_object_store_ids_are_shown_with_the_setting(planted: str, clickhouse_reader: str) -> None:
    with served(clickhouse_reader) as url:
        record = read(f"{url}/api/trajectory?id={HACKED}")
    assert "HEADRACE_STORE_URL" in record["note"]
    assert said(record)[1].split()[0].isdigit()


def test_the_alerts_of_the_page_are_critical_first_with_their_readings(planted: str) -> None:
    panels = read(f"{planted}/watch/api/snapshot?run=")["panels"]
    assert set(panels) == {panel.name for panel in WATCH_PANELS}
    alarms = panels["episodes"]
    assert alarms["monitor"][0] == "tripwire"
    assert alarms["severity"] == sorted(alarms["severity"])  # critical, then warning
    assert HACKED in alarms["examples"][0]
    own = [at for at, id in enumerate(panels["readings"]["episode"]) if id == alarms["episode"][0]]
    assert {panels["readings"]["window"][at] for at in own} == {0, 1}
    assert panels["elsewhere"]["open"] == [0]
    calm = read(f"{planted}/watch/api/snapshot?run={CALM}")["panels"]
    assert calm["episodes"] == {}
    assert calm["elsewhere"]["open"] == [sum(alarms["is_open"])]


def test_a_runbook_is_a_page(planted: str) -> None:
    found = httpx.get(f"{planted}/runbook/lag")
    assert (found.status_code, found.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert found.text == runbook("lag")
    assert httpx.get(f"{planted}/runbook/nope").status_code == 404


@pytest.mark.browser
@needs_chromium
def test_from_an_alert_to_the_guilty_turn_in_three_clicks(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/")
        page.click("nav >> text=Watch")  # 1
        alarm = page.locator("article.alert", has_text="tripwire").first
        alarm.wait_for()
        assert "Tasks that cannot be solved are solved" in alarm.inner_text()
        assert alarm.locator("svg.spark").count() == 2
        assert "(it alarms from 1 on)" in alarm.inner_text()
        assert alarm.locator("figcaption").nth(1).inner_text().startswith("Strength, v")
        assert page.locator("#resolved summary").inner_text() == "1 resolved"
        assert not page.locator("article.resolved").is_visible()  # folded away
        alarm.locator(".examples a", has_text=HACKED[:8]).first.click()  # 2
        turn = page.locator(".turn", has_text="rewrite the test")
        turn.wait_for()
        page.locator("#turns a", has_text="1").first.click()  # 3
        assert page.url.endswith("#turn-1")
        assert GUILTY in page.locator("#turn-1").inner_text()
        assert "edit" in page.locator("#turn-1 .tool").inner_text()
        assert page.locator("script", has_text="alert(1)").count() == 0
        assert complaints == []


@pytest.mark.browser
@needs_chromium
def test_an_alert_of_the_process_on_call_has_what_was_measured_and_its_runbook(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/watch")
        alarm = page.locator("article.alert", has_text="lag of sink").first
        alarm.wait_for()
        assert alarm.locator(".measured").inner_text() == "topic events · partition 3 · records 5,120"
        assert complaints == []
        alarm.locator("a", has_text="How to find the cause").click()
        page.wait_for_url("**/runbook/lag")  # plain text, for which the browser looks for an icon
        assert "A consumer group is behind" in page.locator("body").inner_text()


@pytest.mark.browser
@needs_chromium
def test_from_a_point_of_a_chart_to_the_text_in_two_clicks(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/?run={RUN}")
        page.locator("#reward canvas").wait_for()
        chart = page.locator("#reward .u-over")
        box = chart.bounding_box()
        assert box is not None
        chart.click(position={"x": box["width"] / 2, "y": box["height"] / 2})  # 1: the middle of three versions
        page.wait_for_url("**/explore?*")
        page.locator(f"a[href$='/trajectory/{HACKED}']").first.click()  # 2
        page.locator(".turn", has_text="rewrite the test").wait_for()
        assert complaints == []


@pytest.mark.browser
@needs_chromium
def test_the_colour_of_the_text_can_be_chosen_by_keyboard_and_is_remembered(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/trajectory/{HACKED}")
        page.wait_for_selector("#pieces .sampled")
        assert page.locator("#pieces").get_attribute("data-colour") == "version"
        assert page.locator("#legend").inner_text().strip() == "v1"
        page.focus("#colours input:checked")
        page.keyboard.press("ArrowRight")
        assert page.locator("#pieces").get_attribute("data-colour") == "logprob"
        assert "surprising" in page.locator("#legend").inner_text()
        assert page.locator(".sampled.band-surprising").count() > 0
        page.reload()
        page.wait_for_selector("#pieces[data-colour=logprob]")
        page.check("#colours input[value=advantage]")
        assert "+0.75" in page.locator("#legend").inner_text()
        assert complaints == []


@pytest.mark.browser
@needs_chromium
def test_the_group_and_the_versions_are_a_click_away(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/trajectory/{HACKED}")
        page.click("#group >> text=Side by side")
        page.wait_for_selector("table.beside")
        parting = page.locator("tr[data-parting]")
        assert parting.count() == 1
        assert GUILTY in parting.inner_text()
        assert HONEST in parting.inner_text()
        page.click("#members >> text=v2")
        page.wait_for_selector("#sampled table")
        assert page.locator("#trained tbody tr").count() == 40
        page.click("#trained th >> text=Group")
        assert page.locator("#trained th[aria-sort=descending]").inner_text().startswith("Group")
        page.locator("#trained tbody a").first.click()
        page.wait_for_selector("#pieces .sampled")
        page.go_back()
        assert "Gradient norm" in page.locator("#made table").inner_text()
        page.click("#about >> text=lowest reward first")
        page.wait_for_selector("#trajectories tbody tr")
        rewards = page.locator("#trajectories tbody tr td:nth-child(4)").all_inner_texts()
        scored = [float(text) for text in rewards if text != "–"]
        assert scored == sorted(scored)
        assert len(scored) > 10
        page.go_back()
        page.click("#about >> text=Compare v0 to v1 with v2 to v6")
        page.wait_for_selector("#rewards tbody tr")
        assert complaints == []


@pytest.mark.browser
@needs_chromium
def test_ids_may_have_any_characters_and_nothing_of_them_is_markup(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/trajectory/{quote(ODD, safe='')}")
        page.wait_for_selector("#found:not([hidden])")
        assert page.locator("#id").inner_text() == ODD
        assert "task <i>task</i>" in page.locator("#about").inner_text()
        assert page.locator("main i, main b").count() == 0
        page.goto(f"{planted}/trajectory/none")
        page.wait_for_selector("#problem:not([hidden])")
        assert "no trajectory with the id 'none'" in page.locator("#problem").inner_text()
        assert [each for each in complaints if "404" not in each] == []


@pytest.mark.browser
@needs_chromium
def test_an_acknowledgement_that_fails_says_why_and_keeps_the_name(planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/watch")
        form = page.locator("article.alert form").first
        form.locator("input").fill("ada")
        form.locator("button").click()
        page.locator(".ack-status", has_text="headrace watch ack").wait_for()
        page.wait_for_timeout(500)  # several refreshes
        assert form.locator("input").input_value() == "ada"
        assert [each for each in complaints if "503" not in each] == []


PAGES = {
    "watch": "/watch?run=", "trajectory": f"/trajectory/{HACKED}", "parent": "/trajectory/parent",
    "group": "/group/g-1-1", "version": f"/version/1?run={RUN}",
}  # fmt: skip


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_pages_fit_their_width_and_are_reached_by_keyboard(
    planted: str, tmp_path: Path, width: int, scheme: str
) -> None:
    with browser_page(width, scheme) as (page, complaints):
        for name, path in PAGES.items():
            page.goto(planted + path)
            page.locator("article.alert" if name == "watch" else "#found:not([hidden])").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
            assert unnamed(page) == [], name
        assert complaints == []


def unnamed(page: Page) -> list[str]:
    """Returns the elements that a keyboard reaches and that have no name, and pictures without one."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"], svg, canvas')]
            .filter((node) => !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length))
            .map((node) => node.outerHTML.slice(0, 120))"""
    )
    return found


@pytest.mark.browser
@needs_chromium
def test_without_readings_the_page_says_how_monitors_come_alive(clickhouse_reader: str, planted: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{planted}/watch?run={CALM}")
        page.wait_for_selector("#watched .empty")
        assert "headrace watch plant search-once --live" in page.locator("#watched").inner_text()
        assert "more in other runs" in page.locator("#about").inner_text()
        assert complaints == []
