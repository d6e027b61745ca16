"""From a point of any chart to the text behind it in two clicks: a list of trajectories, then one of them."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import Form
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.hacked_run import RUN, WORDS, store_run
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.deploy.dashboard.uneven_run import RUN as UNEVEN
from tests.deploy.dashboard.uneven_run import fill_uneven_run

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse, needs_chromium]

ADDRESSES = {
    "": f"/?run={RUN}",
    "/trainer": f"/trainer?run={RUN}",
    "/compare": f"/compare?a_run={RUN}&a_to=1&b_run={RUN}&b_from=1",
    "/fleet": "/fleet?run=",
    "/watch": f"/watch?run={RUN}",
    "/explore": f"/explore?run={RUN}",
}
"""Path of a page → its address."""

EXEMPT = {
    ("", "lag"): "seconds that a consumer group is behind, measured of records: of all runs and topics",
    ("/fleet", "lag_s"): "the same",
}
"""Charts whose points have no trajectories behind them, and why."""

SPARKLINES = {("/watch", "readings")}
"""Panels that their page draws as small pictures of its own."""

BARS = {("", "fates"): 3, ("/trainer", "rejected"): 1}
"""Tables that their page draws as bars, with the fewest bars."""

CHARTS = [
    (page.path, panel.name)
    for page in PAGES
    for panel in page.panels
    if panel.form in (Form.LINE, Form.STEPS, Form.BARS, Form.DISTRIBUTION)
    and (page.path, panel.name) not in EXEMPT.keys() | SPARKLINES
]

RECORDS = ("/trajectory/v1-tickets-1-0", "/group/g-1-1", f"/version/1?run={RUN}")
"""Pages about one record. They have no charts."""

CHART = ".uplot, svg.spark, table.bars"


@pytest.fixture(scope="module")
def url(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """The address of a dashboard with a run whose texts can be read."""
    client = open_client(clickhouse)
    ensure_tables(client)
    objects = store_run(client)
    fill_uneven_run(client)
    client.command(
        "INSERT INTO rejected (id_sent, trajectory_id, stage, reason, run, group_id) "
        f"VALUES ('stale', 'v2-shoes-0-1', 'admission', 'stale', '{RUN}', 'g-2-0')"
    )
    client.command(
        "INSERT INTO lag (time, consumer_group, topic, partition, records, seconds) "
        "SELECT now64(3) - number, 'sink', 'events', 0, 5, 1.0 FROM numbers(5)"
    )
    client.close()
    with served(clickhouse_reader, objects=objects) as address:
        yield address


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page, used by all tests one after the other; none may complain."""
    with browser_page() as (page, complaints):
        page.set_default_timeout(10_000)
        yield page
        assert complaints == []


def read_a_text(page: Page) -> None:
    """The page lists trajectories: one click on one of them leads to its text."""
    page.locator("#trajectories tbody tr, #trajectories .empty").first.wait_for()
    assert page.url.partition("?")[0].endswith("/explore")
    page.locator('#trajectories tbody a[href^="/trajectory/"]').first.click()
    page.locator("#pieces .sampled").first.wait_for()
    said = page.locator("#pieces .sampled").first.inner_text().split()
    assert said
    assert set(said) <= set(WORDS.words), "tokens as text"


@pytest.mark.parametrize("how", ["a key", pytest.param("a click", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("path", "panel"), CHARTS, ids=lambda value: value or "overview")
def test_a_point_leads_to_trajectories_and_these_to_their_text(
    url: str, page: Page, path: str, panel: str, how: str
) -> None:
    page.goto(url + ADDRESSES[path])
    chart = page.locator(f"#{panel} .u-over").first
    chart.wait_for()
    chart.focus()
    page.keyboard.press("End")
    if how == "a key":
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    else:
        # Wherever the pointer is above the value, the series that is nearest to it opens.
        chart.scroll_into_view_if_needed()
        cursor, box = chart.locator(".u-cursor-x").bounding_box(), chart.bounding_box()
        assert cursor
        assert box
        across = min(max(cursor["x"], box["x"] + 3), box["x"] + box["width"] - 3)
        page.mouse.click(across, box["y"] + 0.6 * box["height"])
    page.wait_for_url("**/explore?**")
    read_a_text(page)


@pytest.mark.parametrize("how", ["a key", "a click"])
@pytest.mark.parametrize("at", [0, 1], ids=["reading", "strength"])
def test_a_window_of_an_alert_leads_to_trajectories_and_these_to_their_text(
    url: str, page: Page, at: int, how: str
) -> None:
    page.goto(url + ADDRESSES["/watch"])
    picture = page.locator("article.alert:has(svg.spark)").first.locator("svg.spark").nth(at)
    picture.wait_for()
    if how == "a key":
        picture.focus()
        page.keyboard.press("End")
        said = page.locator("article.alert:has(svg.spark)").first.locator("output.said").nth(at).inner_text()
        assert "reading" in said
        page.keyboard.press("Enter")
    else:
        box = picture.bounding_box()
        assert box
        picture.click(position={"x": box["width"] - 5, "y": 20})
    page.wait_for_url("**/explore?**")
    read_a_text(page)


@pytest.mark.parametrize(("path", "panel"), BARS, ids=lambda value: value or "overview")
def test_every_bar_leads_to_trajectories_and_these_to_their_text(url: str, page: Page, path: str, panel: str) -> None:
    at = 0
    while True:
        page.goto(url + ADDRESSES[path])
        page.locator(f"#{panel} table.bars").wait_for()
        bars = page.locator(f"#{panel} table.bars .bar")
        if at >= bars.count():
            break
        bars.nth(at).scroll_into_view_if_needed()
        box = bars.nth(at).bounding_box()
        assert box
        page.mouse.click(box["x"] + 1, box["y"] + box["height"] / 2)
        page.wait_for_url("**/explore?**")
        read_a_text(page)
        at += 1
    assert at >= BARS[path, panel]


def test_the_list_of_a_bin_has_as_many_trajectories_as_its_histogram(url: str, page: Page) -> None:
    def rows(address: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(url + address) as answer:
            columns = json.loads(answer.read())
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    page.goto(url + ADDRESSES[""])
    page.locator("#reward_distribution .uplot").wait_for()
    for run, panel, filters in (
        (RUN, "reward_distribution", "ofRewards"),
        (UNEVEN, "reward_distribution", "ofRewards"),
        (RUN, "length_distribution", "ofTokens"),
    ):
        found = rows(f"/api/panels/{panel}?run={run}")
        assert len(found) > (10 if run == UNEVEN else 1)
        for row in found:
            chosen = page.evaluate(f"{filters}({row['bin']})") | {"from": row["first"], "to": row["last"]}
            listed = rows(f"/explore/api/panels/trajectories?{urlencode({'run': run, 'purpose': 'train', **chosen})}")
            assert len(listed) == round(row["share"] * row["trajectories"]), (panel, row)


def test_a_list_without_trajectories_says_so(url: str, page: Page) -> None:
    page.goto(f"{url}/explore?run={RUN}&tokens_from=100000")
    page.locator("#trajectories .empty").wait_for()
    assert page.locator("#trajectories .empty").inner_text() == "No assembled trajectory matches these filters."


def test_keys_choose_a_series_that_has_a_value(url: str, page: Page) -> None:
    page.goto(url + ADDRESSES[""])
    page.locator("#tools .u-over").focus()
    heard = []
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowDown", "End", "ArrowDown"):
        page.keyboard.press(key)
        heard.append(page.locator("#tools .said").inner_text().split(" (")[0])
    every, *others = heard
    assert every.startswith("v0, edit –, run tests 0.000")
    # Only version 1 has calls of `edit`.
    assert others == [
        "v0, run tests 0.000",
        "v0, search 0.000",
        "v0, run tests 0.000",
        "v2, run tests 0.000",
        "v2, search 0.000",
    ]
    page.keyboard.press("Enter")
    page.wait_for_url("**/explore?**tool=search")


def test_a_chart_of_all_runs_lists_those_of_all_runs(url: str, page: Page) -> None:
    page.goto(url + "/?run=")
    page.locator("#fates table.bars").wait_for()
    address = page.locator("#fates table.bars a").first.get_attribute("href") or ""
    assert address.startswith("/explore?run=&"), "without a run the page would show the newest"


@pytest.mark.parametrize("path", ADDRESSES, ids=lambda value: value or "overview")
def test_no_page_has_a_chart_that_is_neither_tested_nor_exempt(url: str, page: Page, path: str) -> None:
    known = {name for where, name in [*CHARTS, *EXEMPT, *BARS] if where == path}
    page.goto(url + ADDRESSES[path])
    page.wait_for_selector("#state[data-state=live]")
    cards = 'nodes => nodes.map((node) => node.closest("section, #open")?.id ?? "a card without a name")'
    drawn = set(page.locator(CHART).evaluate_all(cards))
    assert drawn <= known | ({"open"} if path == "/watch" else set())
    assert {name for where, name in EXEMPT if where == path} <= drawn, "exempt charts exist"


def test_pages_about_one_record_have_no_charts(url: str, page: Page) -> None:
    for path in RECORDS:
        page.goto(url + path)
        page.locator("main table, #pieces .sampled").first.wait_for()
        assert page.locator(CHART).count() == 0, path
