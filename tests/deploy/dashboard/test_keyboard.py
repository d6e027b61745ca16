"""Every page can be used with a keyboard and read by a screen reader, and fits a phone, in both schemes."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.hacked_run import RUN, store_run
from tests.deploy.dashboard.seed import seed_run
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse, needs_chromium]

PAGES = {
    "overview": ("/?run=rising", "#reward canvas"),
    "overview, split": ("/?run=rising&by=source", "#reward canvas"),
    "trainer": ("/trainer?run=rising", "#reward canvas"),
    "compare": ("/compare?run=rising", "#rewards tbody tr"),
    "explore": ("/explore?run=rising", "#trajectories tbody tr"),
    "fleet": ("/fleet", "#topics tbody tr"),
    "watch": ("/watch?run=", "article.alert"),
    "trajectory": ("/trajectory/v1-tickets-1-0", "#pieces .sampled"),
    "group": ("/group/g-1-1", "table.beside"),
    "version": (f"/version/1?run={RUN}", "#sampled table"),
}
"""Page → its address, and what is there once it is filled."""

MARK = """() => {
  const isShown = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled;
  const usable = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const nodes = [...document.querySelectorAll(usable)].filter(isShown);
  nodes.forEach((node, at) => { node.dataset.at = at; });
  const pointed = [...document.querySelectorAll('body *')].filter((node) => isShown(node)
    && getComputedStyle(node).cursor === 'pointer' && !node.closest(usable) && !node.closest('label')
    && !node.querySelector(usable));
  return { usable: nodes.length, pointed: pointed.map((node) => node.outerHTML.slice(0, 120)) };
}"""
"""Numbers what can be used; returns how much that is, and what a mouse can click and a keyboard cannot reach."""

FOCUSED = """() => {
  const node = document.activeElement;
  const group = node?.type === 'radio' ? [...document.querySelectorAll(`input[name="${node.name}"]`)] : [node];
  return group.map((each) => each?.dataset?.at).filter((at) => at !== undefined);
}"""
"""What has the focus: of radio buttons, whose others the arrow keys reach, all of the name."""

UNNAMED = """() => [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"], svg, canvas')]
  .filter((node) => node.checkVisibility() && !(node.getAttribute('aria-label') || node.textContent.trim()
    || node.labels?.length || node.closest('[aria-label]') || node.closest('[aria-hidden=true]')))
  .map((node) => node.outerHTML.slice(0, 120))"""
"""What a keyboard reaches, and pictures, that have no name."""


@pytest.fixture(scope="module")
def filled(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """The address of a dashboard with a run for each page."""
    client = open_client(clickhouse)
    ensure_tables(client)
    objects = store_run(client)
    seed_run(client, "rising", versions=40)
    client.close()
    with served(clickhouse_reader, objects=objects) as url:
        yield url


def opened(page: Page, url: str, name: str) -> None:
    path, ready = PAGES[name]
    page.goto(url + path)
    page.locator(ready).first.wait_for()


@pytest.mark.parametrize("name", PAGES)
def test_the_tab_key_reaches_everything_that_can_be_used(filled: str, name: str) -> None:
    with browser_page() as (page, complaints):
        opened(page, filled, name)
        found = page.evaluate(MARK)
        assert found["usable"] > 3
        assert found["pointed"] == []
        reached: set[str] = set()
        for _ in range(found["usable"] + 20):  # new rows of a live page have no number
            page.keyboard.press("Tab")
            reached.update(page.evaluate(FOCUSED))
        left = {str(at) for at in range(found["usable"])} - reached
        missed = [page.locator(f'[data-at="{at}"]') for at in sorted(left, key=int)]
        assert [each.evaluate("node => node.outerHTML.slice(0, 120)") for each in missed if each.count()] == []
        assert complaints == []


def test_a_key_hides_a_series_and_shows_it_again(filled: str) -> None:
    with browser_page() as (page, complaints):
        opened(page, filled, "trainer")
        name = page.locator("#reward .u-legend th[role=button]").first
        states = []
        for key in ("Enter", " "):
            name.press(key)
            shown = page.locator("#reward .u-legend .u-series").nth(1).get_attribute("class") or ""
            states.append((name.get_attribute("aria-pressed"), "u-off" in shown))
        assert states == [("false", True), ("true", False)]
        assert complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_every_page_fits_and_everything_has_a_name(filled: str, width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, complaints):
        for name in PAGES:
            opened(page, filled, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate(UNNAMED) == [], name
        assert complaints == []
