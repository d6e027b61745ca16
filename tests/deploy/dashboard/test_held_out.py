"""Each component of the reward on training rollouts beside held-out tasks: one that only rises in training shows."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pytest
from playwright.sync_api import Page

from headrace.streams.clickhouse.columns import Row, arrow_table
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.tables import REWARDS, TRAJECTORIES
from tests.deploy.dashboard.panel_rows import panel_rows
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, colours_of, needs_chromium
from tests.streams.clickhouse.stored_log import NOW_MS

pytestmark = pytest.mark.clickhouse

RUN = "memorises"
RECORDED = "recorded"
"""A run whose attempts have no policy version."""
WEIGHTS = {"recall": 1.0, "style": 0.5, "audit": 0.5}
MAXIMUM = 2.0
VERSIONS = range(4)
EVALUATED = (0, 3)
SIZE, GREEDY, SAMPLED = 32, 32, 4


def values(version: int, number: int, side: str) -> dict[str, float]:
    """Components of an attempt: `recall` rises in training alone, `style` has no held-out side, `audit` no other."""
    wobble = 0.02 * (number % 4)
    if side in ("train", "frozen"):
        return {"recall": (0.2 + 0.2 * version if side == "train" else 0.9) + wobble, "style": 0.4}
    return {"recall": (0.3 if side == "greedy" else 0.1) - wobble, "audit": 0.5}


def attempts() -> Iterator[tuple[str, int, int, dict[str, float]]]:
    """Yields the attempts as (side, version, number, components)."""
    for version in VERSIONS:
        sides = {"train": SIZE, "frozen": 8}
        if version in EVALUATED:
            sides |= {"greedy": GREEDY, "sampled": SAMPLED}
        for side, count in sides.items():
            for number in range(count):
                yield side, version, number, values(version, number, side)


def stored(side: str, version: int | None, number: int, components: dict[str, float]) -> tuple[Row, Row]:
    """Returns the rows of an attempt in `trajectories` and `rewards`."""
    name, held_out = f"{side}-{version}-{number}", side in ("greedy", "sampled")
    total = sum(WEIGHTS[component] * value for component, value in components.items())
    both = {
        "time": NOW_MS, "logged_at": NOW_MS, "offset": number, "trajectory_id": name, "run": RUN, "agent": "a",
        "task_id": f"t{number // 2}", "group_id": "" if held_out else f"g{side}-{version}-{number // 8}",
        "purpose": "evaluate" if held_out else "train", "role": "frozen" if side == "frozen" else "trainable",
        "oldest_version": version, "ended_at": NOW_MS,
    }  # fmt: skip
    labels = {"evaluation": side if held_out else "", "task_source": ("wide", "deep")[number % 2]}
    reward = {
        "spec": "s@1", "total": total, "maximum": MAXIMUM, "normalised": total / MAXIMUM,
        "components": list(components.items()), "weights": list(WEIGHTS.items()),
    }  # fmt: skip
    return {**both, **labels, "id_sent": f"t-{name}"}, {**both, **reward, "id_sent": f"r-{name}"}


@pytest.fixture(scope="module")
def filled(clickhouse: str) -> str:
    """A ClickHouse with the run."""
    client = open_client(clickhouse)
    ensure_tables(client)
    rows = [stored(*each) for each in attempts()]
    for number in range(SIZE):
        rows.append(stored("train", None, number, {"recall": 0.5}))
        for row in rows[-1]:
            row |= {"run": RECORDED}
    for table, of in ((TRAJECTORIES, 0), (REWARDS, 1)):
        insert(client, table, arrow_table(table, [both[of] for both in rows]), f"held-out:{table.name}")
    compute_missing(client)
    client.close()
    return clickhouse


def means(clickhouse: str, **chosen: str) -> dict[tuple[str, int], tuple[float, int]]:
    """Returns the rows of the panel: series and version → mean and n."""
    client = open_client(clickhouse)
    rows = panel_rows(client, "held_out", run=RUN, **chosen)
    client.close()
    assert all(row["series"].startswith(row["component"] + ": ") for row in rows)
    return {(row["series"], row["version"]): (row["share"], row["trajectories"]) for row in rows}


@pytest.mark.parametrize("source", ["", "deep"])
def test_each_component_has_its_means_on_both_sides_by_version(filled: str, source: str) -> None:
    chosen: dict[tuple[str, int], list[float]] = {}
    for side, version, number, components in attempts():
        if side != "frozen" and (not source or number % 2):
            for name, value in components.items():
                chosen.setdefault((f"{name}: {side}", version), []).append(WEIGHTS[name] * value / MAXIMUM)
    expected = {key: (pytest.approx(fmean(found)), len(found)) for key, found in chosen.items()}
    assert means(filled, source=source) == expected
    # What the means of all trajectories of a version would hide: the same component rises here and stays there.
    assert {series for series, _ in expected} == {
        "recall: train", "recall: greedy", "recall: sampled", "style: train", "audit: greedy", "audit: sampled",
    }  # fmt: skip


@pytest.mark.parametrize("by", ["", "source"])
def test_attempts_without_a_policy_version_are_not_those_of_version_0(filled: str, by: str) -> None:
    client = open_client(filled)
    for panel in ("reward", "components", "held_out", "sources", "falls", "reward_distribution", "lengths"):
        assert panel_rows(client, panel, run=RECORDED, by=by) == [], panel
        assert panel_rows(client, panel, run=RECORDED, by=by, source="deep") == [], panel
    (listed,) = [row for row in panel_rows(client, "runs", run=RECORDED) if row["run"] == RECORDED]
    client.close()
    assert (listed["reward"], listed["trajectories"]) == (0.5 / MAXIMUM, SIZE)


def test_the_contributions_of_a_side_add_up_to_its_reward(filled: str) -> None:
    client = open_client(filled)
    reward = {(row["series"], row["version"]): row["reward"] for row in panel_rows(client, "reward", run=RUN)}
    client.close()
    parts: dict[tuple[str, int], float] = {}
    for (series, version), (share, _) in means(filled).items():
        side = series.partition(": ")[2]
        parts[side, version] = parts.get((side, version), 0) + share
    assert parts == {key: pytest.approx(value) for key, value in reward.items() if key[0] != "frozen"}


def caption(page: Page, component: str) -> str:
    """Returns what stands above the chart of a component."""
    return page.locator(f'[data-facet="{component}"] figcaption span').inner_text()


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_says_of_each_component_what_its_held_out_side_is(
    filled: str, clickhouse_reader: str, width: int, scheme: str
) -> None:
    with served(clickhouse_reader) as url, browser_page(width, scheme) as (page, complaints):
        page.goto(f"{url}/?run={RUN}")
        page.locator("#held_out figure canvas").first.wait_for()
        assert page.locator("#held_out figure strong").all_inner_texts() == ["audit", "recall", "style"]
        assert caption(page, "recall") == (
            "v3: training rollouts 0.415 (n 32), held out, greedy 0.135 (n 32), held out, sampled 0.035 (n 4)"
        )
        assert caption(page, "style") == "No held-out side: no evaluation was scored by it."
        assert caption(page, "audit").endswith("held out, sampled 0.125 (n 4); never in training")
        charts = page.locator("#held_out figure canvas")
        assert all(colours_of(charts.nth(at)) > 10 for at in range(3))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # A point of the held-out line lists evaluations of that version, one of training its rollouts.
        opened: list[dict[str, Any]] = []
        for series in ("greedy", "train"):
            chart = page.locator('[data-facet="recall"] .u-over')
            chart.scroll_into_view_if_needed()
            at = page.evaluate(
                """(series) => {
                  const { plot, names } = cards.cards.get('held_out').charts.get('recall').chart;
                  const value = plot.data[1 + names.indexOf(series)].at(-1);
                  return [plot.valToPos(plot.data[0].at(-1), 'x') - 2, plot.valToPos(value, 'y')];
                }""",
                series,
            )
            chart.click(position={"x": at[0], "y": at[1]})
            page.locator("#trajectories tbody tr").first.wait_for()
            opened.append(page.evaluate("Object.fromEntries(new URLSearchParams(location.search))"))
            page.go_back()
            page.locator("#held_out figure canvas").first.wait_for()
        of_version = {"run": RUN, "from": "3", "to": "3"}
        assert opened == [{**of_version, "purpose": "evaluate"}, {**of_version, "purpose": "train"}]
        assert complaints == []
