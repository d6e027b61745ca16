"""The dashboard's pages in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, sync_playwright

from headrace.deploy.system.ports import HOST, free_port
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.folded import CUT_FROM, CUT_SOURCE, fill_cut_run
from tests.deploy.dashboard.served import served

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_ENDED = "net::ERR_ABORTED"


@contextmanager
def browser_page(width: int = 1280, scheme: str = "light", zone: str | None = None) -> Iterator[tuple[Page, list[str]]]:
    """A page and its console errors. ``zone``: the reader's time zone, ``None``: that of the machine."""
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        # Without this, Chromium on a minimal machine uses a locale that Intl refuses.
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            locale="en-US",
            color_scheme=scheme,  # type: ignore[arg-type]
            timezone_id=zone,
        )
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # What the page itself ends is reported as failed too: a stream, or an icon when a link is clicked.
        page.on("requestfailed", lambda request: complaints.extend([request.url] * (request.failure != _ENDED)))
        yield page, complaints
        browser.close()


def colours_of(canvas: Locator) -> int:
    """Returns the number of colours in a canvas: an empty chart has few."""
    count: int = canvas.evaluate(
        "canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, "
        "canvas.height).data.buffer)).size"
    )
    return count


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="Chromium is not installed (apt-get install chromium)"
)


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_draws_every_chart(dashboard: str, tmp_path: Path, width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        page.wait_for_selector("#state[data-state=live]")
        for name in ("reward", "components", "sources", "groups", "versions", "staleness", "lag"):
            canvas = page.locator(f"#{name} canvas")
            canvas.wait_for()
            assert colours_of(canvas) > 20, f"the chart {name} is empty"
        assert page.locator("#reward .u-legend").inner_text().count("held out") == 2
        assert "trained" in page.locator("#fates").inner_text()
        assert "canary mismatch" in page.locator("#alerts").inner_text()
        # Bins without trajectories keep their place.
        assert page.evaluate("allBins([-0.05, 0.1, 0.15], 'share')") == [-0.05, 0, 0.05, 0.1, 0.15]
        assert page.evaluate("allBins([0, 4], 'tokens')") == [0, 1, 2, 4]
        axes = "x: {column: 'bin', unit: 'tokens'}, values: [{column: 'share'}]"
        spec = f"{{form: 'distribution', {axes}, series: 'of', n: 'n'}}"
        columns = "{bin: [1, 4, 4], share: [0.5, 0.5, 1], of: ['a', 'a', 'b'], n: [2, 2, 3]}"
        drawn = page.evaluate(f"alignedOf({spec}, {columns})")
        assert (drawn["xs"], drawn["names"], drawn["bins"]) == ([0, 1, 2, 3], ["a", "b"], [1, 2, 4])
        assert drawn["arrays"] == [[0.5, 0, 0.5, 0.5], [0, 0, 1, 1]]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.screenshot(path=tmp_path / "dashboard.png", full_page=True)
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_trainers_page_draws_every_chart(dashboard: str, width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        page.wait_for_selector("#state[data-state=live]")
        page.click("nav >> text=Trainer")
        page.wait_for_selector("#reward canvas")
        assert page.url.endswith("/trainer?run=rising")
        charts = page.locator("#charts .card:has(.uplot)")
        assert charts.count() == 16
        for at in range(charts.count()):
            chart = charts.nth(at)
            assert colours_of(chart.locator("canvas")) > 20, chart.get_attribute("id")
        assert "Warning: effective sample size below 0.3." in page.locator("#ess .about").inner_text()
        assert "step skipped" in page.locator("#alerts").inner_text()
        assert "1 skipped" in page.locator(".tile").first.inner_text()
        rest = "{groups_granted: 0, groups_waiting: 10, groups_in_flight: 30, groups_per_step: 8}"
        ended = page.evaluate(f"trainerTile(['starved', '52 % in wait'], {rest}).innerText")
        assert "finished" in ended
        assert "samplers" not in ended
        assert page.locator("#steps td code", has_text="kl_k3").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_run_without_steps_shows_what_it_waits_for(dashboard: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/trainer?run=begun")
        page.wait_for_selector("#reward .empty")
        assert "when it has received enough groups with a gradient" in page.locator("#reward .empty").inner_text()
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_selecting_a_run_redraws_the_page_and_names_are_escaped(dashboard: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        tile = page.locator(".tile", has_text="Policy version").locator("strong")
        page.wait_for_selector("#reward canvas")
        before = tile.inner_text()
        page.select_option("#run", label="other <b>run</b>")
        page.wait_for_function(
            "before => document.querySelectorAll('.tile strong')[2].innerText !== before", arg=before
        )
        assert tile.inner_text() == "v2"
        assert "run=other" in page.url
        assert page.locator("#runs b").count() == 0
        assert complaints == []


@pytest.mark.browser
@needs_chromium
def test_an_empty_page_shows_what_to_do() -> None:
    with served(f"http://{HOST}:{free_port()}") as url, browser_page() as (page, complaints):
        page.goto(url)
        page.wait_for_selector("#problem:not([hidden])")
        assert "HEADRACE_CLICKHOUSE" in page.locator("#problem").inner_text()
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_run_without_data_shows_how_to_get_some(dashboard: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=begun")
        page.wait_for_selector("#reward .empty")
        assert "headrace demo" in page.locator("#reward .empty").inner_text()
        assert page.locator("#groups .empty").is_visible()
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_recorded_runs_are_shown_without_a_version(dashboard: str, clickhouse: str) -> None:
    client = open_client(clickhouse)
    client.command(
        "INSERT INTO rejected (id_sent, trajectory_id, stage, reason, run, group_id) VALUES "
        "('r1', 't1', 'group', 'no_token_ids', 'recorded', 'g1'), "
        "('r2', 't2', 'group', 'zero_variance_all_fail', 'recorded', 'g2')"
    )
    client.command(
        "INSERT INTO rewards (id_sent, trajectory_id, run, total, normalised) VALUES ('w', 't1', 'recorded', 1, 1)"
    )
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=recorded")
        page.wait_for_selector("#groups table.bars")
        names = page.locator("#groups table.bars .name").all_inner_texts()
        assert sorted(names) == ["all failed", "no token ids"]
        assert page.locator(".tile strong").first.inner_text() == "1.000"
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), pytest.param(390, "light", marks=pytest.mark.nightly)])
def test_a_cut_in_one_source_is_found_and_its_trajectories_listed(
    clickhouse: str, clickhouse_reader: str, width: int, scheme: str
) -> None:
    client = open_client(clickhouse)
    fill_cut_run(client)
    client.close()
    with served(clickhouse_reader) as url, browser_page(width, scheme) as (page, complaints):
        page.goto(f"{url}/?run=cut")
        first = page.locator("#falls tbody tr").first
        first.wait_for()
        assert [first.locator("td").nth(at).inner_text() for at in (0, 1, 2)] == ["source", CUT_SOURCE, f"v{CUT_FROM}"]
        # The chart split by source has a line for each source, and keeps its filters in the address.
        page.select_option("#slices [data-parameter=by]", "source")
        page.wait_for_function("() => document.querySelectorAll('#reward .u-legend .u-series').length === 6")
        assert "by=source" in page.url
        assert page.locator("#reward .u-legend").inner_text().count(" to ") == 5  # intervals
        page.select_option("#slices [data-parameter=source]", CUT_SOURCE)
        page.wait_for_function("() => document.querySelectorAll('#reward .u-legend .u-series').length === 2")
        assert page.locator("#versions .cut").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.go_back()
        page.wait_for_function("() => document.querySelectorAll('#reward .u-legend .u-series').length === 6")
        # From the fall to its trajectories, the worst first.
        page.locator("#falls tbody a").first.click()
        page.locator("#trajectories tbody tr").first.wait_for()
        assert page.locator("#trajectories tbody tr").count() == 40
        rewards = [float(text) for text in page.locator("#trajectories tbody tr td:nth-child(4)").all_inner_texts()]
        assert rewards == sorted(rewards)
        assert (page.locator("#trajectories tbody a").first.get_attribute("href") or "").startswith("/trajectory/")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_card_shows_its_rows_its_sql_and_its_files(dashboard: str, clickhouse_reader: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=rising&by=source")
        page.wait_for_selector("#reward canvas")
        page.click("#reward details.data summary")
        sql = page.locator("#reward pre").inner_text()
        shown = page.locator("#reward .rows tbody tr").count()
        assert len(open_client(clickhouse_reader).query(sql).result_rows) == shown == 25  # two sources, and once none
        with page.expect_download() as download:
            page.click("#reward details.data >> text=CSV")
        assert len(Path(download.value.path()).read_text().splitlines()) == 1 + shown
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_the_keyboard_reads_a_chart_and_opens_the_trajectories_of_a_point(dashboard: str) -> None:
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        page.wait_for_selector("#components canvas")
        page.focus("#components .u-over")
        name = page.locator("#components .u-over").get_attribute("aria-label") or ""
        assert name.startswith("Components of the reward: ")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        said = page.locator("#components .said").inner_text()
        assert said.startswith("v1, ")
        assert "n 64" in said
        page.keyboard.press("Enter")
        page.locator("#trajectories tbody tr").first.wait_for()
        assert "from=1&to=1" in page.url
        assert page.locator("#trajectories .note").first.inner_text().startswith("64 of 64 trajectories")
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_two_ranges_are_compared_from_a_bare_address(dashboard: str, width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, complaints):
        page.goto(f"{dashboard}/compare?run=rising")
        page.locator("#rewards tbody tr").first.wait_for()
        assert "a_run=rising&a_from=0&a_to=4&b_run=rising&b_from=7&b_to=11" in page.url
        reward = page.locator("#rewards tr", has=page.locator("td", has_text=re.compile("^reward$")))
        assert reward.get_attribute("data-clear") == "more"
        page.fill("[name=b_run]", "rsing")
        page.click("#sides >> text=Compare")
        page.wait_for_selector("#problem:not([hidden])")
        assert "Is it 'rising'?" in page.locator("#problem").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), pytest.param(390, "light", marks=pytest.mark.nightly)])
def test_slices_of_both_sides_and_of_one_are_compared_and_in_the_address(
    clickhouse: str, clickhouse_reader: str, width: int, scheme: str
) -> None:
    client = open_client(clickhouse)
    fill_cut_run(client)
    client.close()

    def n_of_reward() -> list[str]:
        row = page.locator("#rewards tr", has=page.locator("td", has_text=re.compile("^reward$")))
        return row.locator("td").all_inner_texts()[-2:]

    with served(clickhouse_reader) as url, browser_page(width, scheme) as (page, complaints):
        page.goto(f"{url}/compare?a_run=cut&a_to=39&b_run=cut&b_from=40")
        page.select_option("#slices [data-parameter=source]", CUT_SOURCE)
        page.wait_for_function("() => document.querySelector('#rewards td:last-child')?.innerText === '80'")
        assert n_of_reward() == ["80", "80"]
        page.click("#sides >> text=Slices of B alone")
        page.select_option("[name=b_source]", "deep")
        page.select_option("[name=b_tool]", "read")
        page.click("#sides >> text=Compare")
        page.wait_for_function("() => document.querySelector('#rewards td:last-child')?.innerText === '40'")
        address = page.url
        assert f"source={CUT_SOURCE}" in address
        assert "b_source=deep" in address
        assert "b_tool=read" in address
        assert n_of_reward() == ["80", "40"]
        page.goto(address)  # a link is a saved view
        page.locator("#rewards tbody tr").first.wait_for()
        assert n_of_reward() == ["80", "40"]
        assert page.locator("[name=b_source]").input_value() == "deep"
        page.click("#sides >> text=Swap sides")
        page.wait_for_function("() => document.querySelector('#rewards td:last-child')?.innerText === '80'")
        assert n_of_reward() == ["40", "80"]
        page.click("#slices >> text=Reset")
        page.wait_for_function("() => document.querySelector('#rewards td:last-child')?.innerText === '400'")
        assert n_of_reward() == ["40", "400"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_two_hundred_runs_are_searched_and_sorted(dashboard: str, clickhouse: str) -> None:
    open_client(clickhouse).command(
        "INSERT INTO rewards (id_sent, trajectory_id, run, total, normalised, ended_at) "
        "SELECT toString(number), concat('listed-', toString(number)), "
        "       if(number < 2000, 'listed-largest', concat('listed-', toString(number))), 1, 1, "
        "       toDateTime64('2026-01-01 00:00:00', 3) + number FROM numbers(2250)"
    )
    with browser_page() as (page, complaints):
        page.goto(f"{dashboard}/?run=rising")
        page.locator("#runs tbody tr").first.wait_for()
        page.click("#runs th >> text=Scored")
        assert page.locator("#runs tbody td").first.inner_text() == "listed-largest"
        page.fill("#runs input[type=search]", "listed-21")
        assert page.locator("#runs tbody tr").count() == 100
        page.click("#runs tbody a >> nth=0")
        page.wait_for_function("() => document.querySelector('#run').value.startsWith('listed-21')")
        assert complaints == []
