"""From the alert about a planted hack to the text of a guilty attempt, over rows folded from the events that
`headrace watch plant NAME --live` sends."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.watch.planted.events import guilty_turn
from headrace.streams.watch.planted.hacks import HACKS
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.deploy.watching.folded_plant import FoldedPlant, with_hack
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

pytestmark = pytest.mark.clickhouse

FIRST_ALARMS = {"marked-answer": "marked", "search-once": "few_calls"}
"""Hack → the monitor that alarms first."""
STEPS = {"marked-answer": 15, "search-once": 20}
"""Hack → its steps, after as many honest ones as the monitors need for their baselines."""


@dataclass
class Served:
    """A dashboard with planted runs."""

    url: str
    runs: dict[str, FoldedPlant]


@pytest.fixture(scope="module")
def planted(clickhouse: str, clickhouse_reader: str) -> Iterator[Served]:
    client = open_client(clickhouse)
    ensure_tables(client)
    runs = {}
    for number, name in enumerate(FIRST_ALARMS):
        runs[name] = with_hack(name, honest=26, steps=STEPS[name], end_ms=NOW_MS, partition=number)
        log = StoredLog()
        # All that the monitors said, and the attempts of the hacked steps.
        since_ms = NOW_MS - 1000 * STEPS[name]
        log.records = [
            each
            for each in runs[name].records
            if each.topic != "observations" and (each.topic == "monitors" or each.timestamp >= since_ms)
        ]
        log.write(client, name)
    client.close()
    with served(clickhouse_reader) as url:
        yield Served(url, runs)


@pytest.mark.parametrize("name", FIRST_ALARMS)
def test_the_first_alarm_names_guilty_attempts_that_have_a_text(planted: Served, name: str) -> None:
    run = planted.runs[name]
    step, alert = run.first_alarm()
    assert alert.episode is not None
    assert alert.episode.monitor == FIRST_ALARMS[name]
    assert step < STEPS[name]
    guilty = [each for each in alert.episode.examples if run.attempts[each].hack == name]
    assert len(guilty) >= 3
    record = httpx.get(f"{planted.url}/api/trajectory", params={"id": guilty[0]}, timeout=60).json()
    turn = guilty_turn(run.attempts[guilty[0]])
    assert HACKS[name].says in record["text"]["turns"][turn]["messages"][-1]["text"]
    assert record["text"]["is_text"]
    assert "messages of the calls" in record["note"]
    assert (record["fate"]["fate"], record["reward"]["spec"]) == ("rejected", "planted@1")
    assert set(record["reward"]["components"]) <= {"answer", "judged", "parallel", "quality"}


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("name", FIRST_ALARMS)
def test_from_the_alert_to_the_first_guilty_attempt_in_three_clicks(planted: Served, name: str) -> None:
    run = planted.runs[name]
    _, alert = run.first_alarm()
    assert alert.episode is not None
    id = next(each for each in alert.episode.examples if run.attempts[each].hack == name)
    turn = guilty_turn(run.attempts[id])
    with browser_page() as (page, complaints):
        # Of all runs: a page that is loaded keeps its run in its links, and the newest one may be another.
        page.goto(f"{planted.url}/?run=")
        page.wait_for_selector("#state[data-state=live]")
        page.click("nav >> text=Watch")  # 1
        alarm = page.locator(f"article.alert[id='{alert.episode.id}']")
        alarm.wait_for()
        assert run.run in alarm.inner_text()
        alarm.locator(f".examples a[title='{id}']").click()  # 2
        page.locator("#turns a").first.wait_for()
        page.locator("#turns a", has_text=str(turn)).first.click()  # 3
        assert page.url.endswith(f"#turn-{turn}")
        assert HACKS[name].says in page.locator(f"#turn-{turn}").inner_text()
        assert page.locator(f"#turn-{turn} .tool").count() == 1
        version = f"v{run.attempts[id].version}"
        assert page.locator("#legend").inner_text().strip() == version, "messages are coloured by the version, too"
        assert page.locator("#tiles .tile", has_text="Sampled by").locator("strong").inner_text() == version
        assert page.locator(f"#turn-{turn} .sampled.version-0").count() == 1
        assert "Log-probability" not in page.locator("#colours").inner_text()
        assert complaints == []
