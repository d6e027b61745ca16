"""What charts draw: faded where they rest on few trajectories, smoothed if wanted, and in a time zone that is named."""

import json
import re
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from statistics import fmean
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page

from headrace.deploy.dashboard.certainty import FEW
from headrace.deploy.dashboard.page_html import STATIC
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.deploy.dashboard.uneven_run import COUNTS, ELEVEN_MS, RUN, attempts, fill_uneven_run

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse, needs_chromium]

FADED = 0.35
RECORD = """
  window.drawn = [];
  const { stroke, fill, arc } = CanvasRenderingContext2D.prototype;
  const note = (kind, of, colour) => drawn.push([kind, of.globalAlpha, colour]);
  let point = false;
  Object.assign(CanvasRenderingContext2D.prototype, {
    arc(...all) { point = true; return arc.apply(this, all); },
    stroke(...all) { note("line", this, this.strokeStyle); return stroke.apply(this, all); },
    fill(...all) { if (point) note("point", this, this.fillStyle); point = false; return fill.apply(this, all); },
  });
"""
"""Notes with which opacity and colour pieces of lines and points are drawn."""


@pytest.fixture(scope="module")
def url(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """The address of a dashboard with the run."""
    client = open_client(clickhouse)
    fill_uneven_run(client)
    at = f"fromUnixTimestamp64Milli(toInt64({ELEVEN_MS}))"
    client.command(
        "INSERT INTO alerts (id_sent, logged_at, time, run, part, kind, severity, message, episode) "
        f"SELECT 'a', now64(3), {at}, '{RUN}', 'trainer', 'step_skipped', 'warning', 'was skipped', 'e/1'"
    )
    client.command(
        "INSERT INTO steps (id_sent, logged_at, time, run, step, version, groups, trajectories, metrics) "
        f"SELECT 's', now64(3), {at}, '{RUN}', 1, 1, 1, 8, map('loss', 0.1)"
    )
    client.command(
        "INSERT INTO lag (time, consumer_group, topic, partition, records, seconds) "
        "SELECT now64(3) - number, 'sink', 'events', 0, 5, 1.0 FROM numbers(5)"
    )
    client.close()
    with served(clickhouse_reader) as address:
        yield address


def drawn(page: Page, panel: str, path: str) -> list[tuple[str, float]]:
    """Returns the pieces of the first line of a chart of the page and its points, with their opacity."""
    page.goto(path)
    page.locator(f"#{panel} canvas").wait_for()
    chart = f"cards.cards.get('{panel}').chart"
    found = page.evaluate(f"() => {{ drawn.length = 0; {chart}.plot.redraw(); return drawn; }}")
    # A redraw may be put off to the next frame.
    page.wait_for_timeout(200)
    found = page.evaluate("drawn") or found
    colour = page.evaluate("css('--c0')")
    return [(kind, round(alpha, 2)) for kind, alpha, drawn_in in found if drawn_in == colour]


def test_the_page_and_the_queries_have_the_same_bound_for_few() -> None:
    found = re.search(r"const FEW = (\d+);", (STATIC / "charts.js").read_text())
    assert found
    assert int(found[1]) == FEW == 30


def test_what_rests_on_fewer_than_thirty_is_faded(url: str) -> None:
    few = [count < 30 for count in COUNTS]
    assert few == [False, True, False, False, True, False], "29 are few, 30 are not"
    with browser_page() as (page, complaints):
        page.add_init_script(RECORD)
        found = drawn(page, "reward", f"{url}/?run={RUN}")
        lines = [("line", FADED if few[at - 1] or few[at] else 1) for at in range(1, len(few))]
        assert found == [*lines, *(("point", FADED if each else 1) for each in few)]
        assert complaints == []


def test_a_measure_of_a_comparison_is_faded_if_a_side_has_fewer_than_thirty(url: str) -> None:
    with browser_page() as (page, complaints):
        for a, b, faded in ((0, 2, False), (0, 1, True), (1, 0, True)):
            page.goto(f"{url}/compare?a_run={RUN}&a_from={a}&a_to={a}&b_run={RUN}&b_from={b}&b_to={b}")
            row = page.locator("#rewards tbody tr").first
            row.wait_for()
            assert ("few" in (row.get_attribute("class") or "")) is faded, (a, b)
        assert complaints == []


def smoothed(span: int) -> tuple[list[float], list[int]]:
    """Returns the means of neighbouring versions over all their trajectories, and their numbers."""
    means, sizes = [], []
    for version in range(len(COUNTS)):
        near = [each.reward for each in attempts() if abs(each.version - version) <= span // 2]
        means.append(fmean(near))
        sizes.append(len(near))
    return means, sizes


def test_a_line_below_0_fills_its_chart_as_one_above_it_does(url: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{url}/?run={RUN}")
        for low, high, expected in ((-2, -1, [-2.16, 0]), (-2, 0, [-2.16, 0]), (0, 0, [0, 1]), (0, 2, [0, 2.16])):
            found = page.evaluate(f"Chart.prototype.rangeOf.call({{ certainty: {{}} }}, {low}, {high})")
            assert found == pytest.approx(expected)
        assert complaints == []


@pytest.mark.parametrize("span", [5, 15])
def test_a_smoothed_line_has_the_means_of_neighbours_by_n_with_the_raw_points_behind_it(url: str, span: int) -> None:
    with browser_page() as (page, complaints):
        page.add_init_script(RECORD)
        found = drawn(page, "reward", f"{url}/?run={RUN}&smooth={span}")
        chart = "cards.cards.get('reward').chart"
        means, sizes = smoothed(span)
        raw = [fmean(each.reward for each in attempts() if each.version == version) for version in range(len(COUNTS))]
        assert page.evaluate(f"{chart}.plot.data[1]") == pytest.approx(means)
        assert page.evaluate(f"{chart}.points[0]") == pytest.approx(raw)
        assert page.evaluate(f"{chart}.sizes[0]") == sizes
        # The lines rest on more than single versions do, so none is faded; the points behind them are.
        assert found == [*[("line", 1)] * (len(COUNTS) - 1), *[("point", FADED)] * len(COUNTS)]
        # What is said of a version is of its own trajectories.
        page.focus("#reward .u-over")
        page.keyboard.press("Home")
        assert page.locator("#reward .said").inner_text().startswith(f"v0, training rollouts {raw[0]:.3f} (")
        page.select_option("#slices [data-parameter=smooth]", "")
        page.wait_for_function(f"() => {chart}.points === null")
        assert "smooth" not in page.url
        assert page.evaluate(f"{chart}.plot.data[1]") == pytest.approx(raw)
        assert complaints == []


def rows(address: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(address) as answer:
        columns = json.loads(answer.read())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("zone", "short"), [("Australia/Adelaide", "GMT+10:30"), ("America/New_York", "GMT-5"), ("UTC", "UTC")]
)
def test_times_are_in_the_readers_time_zone_which_is_named(url: str, zone: str, short: str) -> None:
    def local(ms: float) -> datetime:
        return datetime.fromtimestamp(ms / 1000, ZoneInfo(zone))

    with browser_page(zone=zone) as (page, complaints):
        page.goto(f"{url}/?run={RUN}")
        page.locator("#alerts td.when").wait_for()
        assert page.locator("#alerts .zone").inner_text() == f"Times: {zone}"
        assert page.locator("#alerts td.when").inner_text() == f"{local(ELEVEN_MS):%Y-%m-%d %H:%M:%S}"
        page.focus("#lag .u-over")
        page.keyboard.press("Home")
        said = page.locator("#lag .said").inner_text()
        assert f"Time, {zone}" in page.locator("#lag .u-legend").inner_text()
        shown = {f"{local(row['ms']):%H:%M:%S}" for row in rows(f"{url}/api/panels/lag")}
        assert said.split(",")[0] in shown
        assert page.locator('#runs th[data-column="last_ms"]').inner_text() == f"Last trajectory, {zone}"
        page.goto(f"{url}/explore?run={RUN}&limit=1000&id=u0-3")
        page.locator("#trajectories tbody tr").first.wait_for()
        assert page.locator('#trajectories th[data-column="ended_ms"]').inner_text().startswith(f"Ended, {zone}")
        ended = page.locator("#trajectories tbody tr", has=page.get_by_text("u0-3", exact=True)).locator("td").nth(1)
        assert ended.inner_text() == f"{local(ELEVEN_MS):%Y-%m-%d %H:%M:%S}"
        page.goto(f"{url}/version/1?run={RUN}")
        page.locator("#made table").wait_for()
        at = local(ELEVEN_MS)
        assert f"{at.day} {at:%b %Y, %H:%M:%S} {short}" in page.locator("#made .about").inner_text()
        assert complaints == []


def test_an_alert_of_a_monitor_leads_to_its_card(url: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{url}/?run={RUN}")
        page.locator("#alerts a").first.wait_for()
        (address,) = [each.get_attribute("href") for each in page.locator("#alerts a").all()]
        assert address == f"/watch?run={RUN}#e%2F1"
        page.goto(f"{url}/trainer?run={RUN}")
        page.locator("#alerts td").first.wait_for()
        assert page.locator("#alerts a").count() == 0
        assert complaints == []


@pytest.mark.parametrize("by", ["source", "channel"])
def test_the_tiles_of_a_split_page_name_no_version_and_no_mean(url: str, by: str) -> None:
    with browser_page() as (page, _):
        page.goto(f"{url}/?run={RUN}&by={by}")
        page.locator("#tiles .tile").first.wait_for()
        tiles = page.locator("#tiles .tile").all_inner_texts()
    assert [each.split("\n")[1:] for each in tiles[:2]] == [
        ["–", "split by slices below"],
        ["–", "only without a split"],
    ]
