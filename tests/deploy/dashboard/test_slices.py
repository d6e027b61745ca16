"""Charts cut by slices: what happens in one slice is visible, with its certainty."""

from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import pytest

from headrace.deploy.dashboard.certainty import FEW, Z
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import Form
from headrace.deploy.dashboard.slices import NONE, SLICES
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.folded import CUT_FROM, CUT_SOURCE, GROUPS, SIZE, SOURCES, TOOLS, VERSIONS, fill_cut_run
from tests.deploy.dashboard.panel_rows import panel_rows

pytestmark = pytest.mark.clickhouse


class Pages:
    """Reads panels of pages whose tables hold the run ``cut``."""

    def __init__(self, url: str) -> None:
        self._client = open_client(url)
        self.trajectories = fill_cut_run(self._client)

    def facts(self) -> list[dict[str, Any]]:
        """The rows of `trajectory_facts`."""
        found = self._client.query("SELECT * FROM trajectory_facts WHERE run = 'cut'")
        return [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]

    def insert(self, statement: str) -> None:
        self._client.command(statement)

    def rows(self, name: str, path: str = "", **chosen: str) -> list[dict[str, Any]]:
        return panel_rows(self._client, name, path, **{"run": "cut", **chosen})

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def pages(clickhouse: str) -> Iterator[Pages]:
    pages = Pages(clickhouse)
    yield pages
    pages.close()


def test_a_cut_in_one_source_shows_where_the_line_of_all_rises(pages: Pages) -> None:
    means = {row["version"]: row["reward"] for row in pages.rows("reward")}
    before, after = ([means[version] for version in span] for span in (range(35, 40), range(40, 45)))
    assert fmean(after) > fmean(before)  # the overview's line rises over the cut

    clear = [row for row in pages.rows("falls") if row["verdict"] == "clear"]
    assert (clear[0]["kind"], clear[0]["slice"], clear[0]["since"]) == ("source", CUT_SOURCE, CUT_FROM)
    assert {row["slice"] for row in clear if row["kind"] == "source"} == {CUT_SOURCE}
    assert clear[0]["low"] < clear[0]["change"] < clear[0]["high"] < 0
    assert "all" not in {row["kind"] for row in clear}


def test_a_chart_split_by_source_has_a_line_for_each_and_the_fall_in_one(pages: Pages) -> None:
    rows = pages.rows("reward", by="source")
    assert {row["series"] for row in rows} == set(SOURCES)
    change = {}
    for source in SOURCES:
        means = {row["version"]: row["reward"] for row in rows if row["series"] == source}
        change[source] = fmean(means[v] for v in range(40, 45)) - fmean(means[v] for v in range(35, 40))
    assert {source for source, difference in change.items() if difference < 0} == {CUT_SOURCE}


def test_a_chart_cut_to_a_slice_counts_only_its_trajectories(pages: Pages) -> None:
    assert sum(row["trajectories"] for row in pages.rows("reward")) == pages.trajectories
    slices: tuple[tuple[dict[str, Any], float], ...] = (
        ({"source": CUT_SOURCE}, 1 / len(SOURCES)),
        ({"tool": "read"}, 1 / 2),
        ({"tenant": "tenant-0"}, 1 / GROUPS),
        ({"source": CUT_SOURCE, "tool": "read"}, 1 / len(SOURCES) / 2),
        ({"length": "under 64"}, 1 / 2),
        ({"agent": "shop"}, 1),
        ({"harness": "h1"}, 1),
        ({"channel": "slack"}, 1 / 2),
        ({"channel": "slack", "tool": "read"}, 1 / 4),
        ({"agent": NONE}, 0),
    )
    for chosen, share in slices:
        for name, n in (("reward", "trajectories"), ("lengths", "trajectories"), ("tools", "calls")):
            found = sum(row[n] for row in pages.rows(name, **chosen))
            assert found == pages.trajectories * share, (name, chosen)
        fates = sum(row["trajectories"] for row in pages.rows("fates", **chosen))
        assert fates == pages.trajectories * share


def test_the_parts_of_a_split_are_the_whole(pages: Pages) -> None:
    for each in SLICES:
        rows = pages.rows("reward", by=each.name)
        assert sum(row["trajectories"] for row in rows) == pages.trajectories, each.name
        shares = pages.rows("reward_distribution", by=each.name)
        for series in {row["series"] for row in shares}:
            assert sum(row["share"] for row in shares if row["series"] == series) == pytest.approx(1)


def test_the_choices_are_the_slices_of_the_run(pages: Pages) -> None:
    choices = pages.rows("choices")
    assert {row["slice"] for row in choices if row["kind"] == "source"} == set(SOURCES)
    assert {row["slice"]: row["trajectories"] for row in choices if row["kind"] == "tool"} == dict.fromkeys(
        TOOLS, pages.trajectories // 2
    )


def test_an_interval_takes_the_attempts_at_a_task_together(pages: Pages) -> None:
    # The clustered error of a version's mean, computed here from the rewards of the same trajectories.
    rows = [row for row in pages.rows("trajectories", "/explore", limit="5000") if row["version"] == 33]
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["group_id"], []).append(row["reward"])
    mean, count = fmean(row["reward"] for row in rows), len(rows)
    clusters = len(rewards)
    residuals = [sum(value - mean for value in values) for values in rewards.values()]
    error = (sum(each**2 for each in residuals) * clusters / (clusters - 1)) ** 0.5 / count
    (point,) = (row for row in pages.rows("reward") if row["version"] == 33)
    assert (point["trajectories"], point["clusters"]) == (count, clusters)
    assert point["reward"] == pytest.approx(mean)
    assert point["high"] - point["low"] == pytest.approx(2 * Z * error)


def test_a_single_task_has_no_interval_and_few_trajectories_are_told(pages: Pages) -> None:
    rows = pages.rows("reward", source=CUT_SOURCE, tenant="tenant-0")
    assert {(row["low"], row["high"], row["trajectories"]) for row in rows} == {(None, None, SIZE)}
    assert SIZE < FEW


def test_tools_that_fail_show_by_tool(pages: Pages) -> None:
    rows = pages.rows("tools")
    failed = {(row["series"], row["version"]): row["failed"] for row in rows}
    assert failed["read", VERSIONS[0]] == 0
    assert failed["read", VERSIONS[-1]] == 1
    assert {failed["search", version] for version in VERSIONS} == {0}
    assert all(0 <= row["low"] < row["high"] <= 1 for row in rows)


def test_distributions_compare_the_newest_versions_with_the_first(pages: Pages) -> None:
    rows = pages.rows("length_distribution")
    assert {row["series"] for row in rows} == {"newest: v40 to v49", "first: v30 to v39"}
    assert {(row["bin"], row["share"]) for row in rows} == {(16, 0.5), (64, 0.5)}


def test_two_ranges_of_versions_are_compared_by_component_tool_and_task(pages: Pages) -> None:
    sides = {"a_run": "cut", "a_from": "35", "a_to": "39", "b_run": "cut", "b_from": "40", "b_to": "44"}
    measures = {row["measure"]: row for row in pages.rows("rewards", "/compare", **sides)}
    assert set(measures) == {"reward", "component score"}
    assert measures["reward"]["n_a"] == measures["reward"]["n_b"] == pages.trajectories / 4
    assert measures["reward"]["difference"] == pytest.approx(measures["reward"]["b"] - measures["reward"]["a"])
    lengths = {row["measure"]: row for row in pages.rows("lengths", "/compare", **sides)}
    assert lengths["sampled tokens"]["a"] == lengths["sampled tokens"]["b"] == 70
    assert lengths["calls of read"]["a"] == 0.5
    tools = {row["measure"]: row for row in pages.rows("tools", "/compare", **sides)}
    assert (tools["read"]["a"], tools["read"]["b"], tools["search"]["b"]) == (0, 1, 0)
    (score,) = pages.rows("score", "/compare", **sides)
    tasks = {row["task_id"]: row for row in pages.rows("tasks", "/compare", **sides)}
    assert (score["tasks"], score["a_wins"], score["b_wins"]) == (len(SOURCES) * GROUPS, GROUPS, 4 * GROUPS)
    assert {name for name, row in tasks.items() if row["verdict"] == "A wins"} == {
        f"{CUT_SOURCE}-{group}" for group in range(GROUPS)
    }
    assert score["mean"] == pytest.approx(fmean(row["difference"] for row in tasks.values()))


@pytest.mark.parametrize(
    ("a", "b", "share_of_a", "share_of_b"),
    [
        ({"source": CUT_SOURCE}, {"source": CUT_SOURCE}, 1 / 5, 1 / 5),
        ({"source": CUT_SOURCE}, {"source": "deep"}, 1 / 5, 1 / 5),
        ({"tool": "read"}, {}, 1 / 2, 1),
        ({"tenant": "tenant-0", "length": "under 64"}, {"harness": "h1", "agent": "shop"}, 1 / 4, 1),
        ({"agent": NONE}, {"source": "mail", "tool": "search"}, 0, 1 / 10),
        ({"channel": "web"}, {"channel": "slack"}, 1 / 2, 1 / 2),
    ],
)
def test_slices_are_compared_with_one_another(
    pages: Pages, a: dict[str, str], b: dict[str, str], share_of_a: float, share_of_b: float
) -> None:
    ranges = {"a_run": "cut", "a_from": "35", "a_to": "39", "b_run": "cut", "b_from": "40", "b_to": "44"}
    own = {f"{side}_{kind}": value for side, given in (("a", a), ("b", b)) for kind, value in given.items()}
    both = [ranges | own]
    if a == b:
        both.append(ranges | a)  # a slice of both sides
    for chosen in both:
        n = pages.trajectories / 4 * share_of_a, pages.trajectories / 4 * share_of_b
        for panel, measure in (("rewards", "reward"), ("lengths", "sampled tokens")):
            rows = {row["measure"]: row for row in pages.rows(panel, "/compare", **chosen)}
            assert (rows[measure]["n_a"], rows[measure]["n_b"]) == n, panel
        for side, first, last in (("a", 35, 39), ("b", 40, 44)):
            given = a if side == "a" else b
            listed = pages.rows(
                "trajectories",
                "/explore",
                limit="5000",
                purpose="train",
                **{"from": str(first), "to": str(last)},
                **given,
            )
            (reward,) = (row for row in pages.rows("rewards", "/compare", **chosen) if row["measure"] == "reward")
            assert reward[side] == (pytest.approx(fmean(row["reward"] for row in listed)) if listed else None)
        for panel in ("reward_distribution", "length_distribution"):
            held = {row["side"]: row["trajectories"] for row in pages.rows(panel, "/compare", **chosen)}
            assert (held.get("A", 0), held.get("B", 0)) == n, panel
        tasks = {row["task_id"] for row in pages.rows("tasks", "/compare", **chosen)}
        assert {task.rpartition("-")[0] for task in tasks} == (
            set() if {a.get("source"), b.get("source")} == {CUT_SOURCE, "deep"} or not share_of_a
            else {CUT_SOURCE} if "source" in a else set(SOURCES)
        )  # fmt: skip


def test_a_side_has_its_own_slice_instead_of_that_of_both(pages: Pages) -> None:
    sides = {"a_run": "cut", "b_run": "cut", "source": CUT_SOURCE, "b_source": "deep", "tool": "read"}
    (tool,) = (row for row in pages.rows("tools", "/compare", **sides))
    assert (tool["measure"], tool["n_a"], tool["n_b"]) == ("read", pages.trajectories / 10, pages.trajectories / 10)
    (score,) = pages.rows("score", "/compare", **sides)
    assert score["tasks"] == 0
    assert {row["slice"] for row in pages.rows("choices", "/compare", **sides) if row["kind"] == "source"} == set(
        SOURCES
    )
    assert pages.rows("choices", "/compare") == []


def test_a_side_without_trajectories_has_no_difference(pages: Pages) -> None:
    sides = {"a_run": "cut", "a_to": "39", "b_run": "none"}
    (reward, *_) = (row for row in pages.rows("rewards", "/compare", **sides) if row["measure"] == "reward")
    assert (reward["n_a"], reward["n_b"]) == (pages.trajectories / 2, 0)
    assert (reward["b"], reward["difference"]) == (None, None)
    (score,) = pages.rows("score", "/compare", **sides)
    assert score["tasks"] == 0


def test_trajectories_are_listed_by_filters_in_an_order_and_bounded(pages: Pages) -> None:
    rows = pages.rows(
        "trajectories", "/explore", source=CUT_SOURCE, **{"from": "40", "to": "44"}, sort="reward", order="rising"
    )
    assert len(rows) == 5 * GROUPS * SIZE
    assert [row["reward"] for row in rows] == sorted(row["reward"] for row in rows)
    assert {(row["source"], row["matching"]) for row in rows} == {(CUT_SOURCE, len(rows))}
    some = pages.rows("trajectories", "/explore", limit="7", sort="version")
    assert len(some) == 7
    assert {(row["version"], row["matching"]) for row in some} == {(VERSIONS[-1], pages.trajectories)}
    (one,) = pages.rows("trajectories", "/explore", id=rows[0]["trajectory_id"])
    assert one["trajectory_id"] == rows[0]["trajectory_id"]
    low = pages.rows("trajectories", "/explore", most="0.3", limit="5000")
    assert low
    assert all(row["reward"] <= 0.3 for row in low)
    waiting = pages.rows("trajectories", "/explore", fate="waiting", limit="5000")
    assert {row["fate"] for row in waiting} == {"waiting"}
    assert pages.rows("trajectories", "/explore", task="no such task") == []


CHOSEN: dict[str, tuple[dict[str, str], Callable[[dict[str, Any]], bool]]] = {
    "all": ({}, lambda row: True),
    "source": ({"source": CUT_SOURCE}, lambda row: row["task_source"] == CUT_SOURCE),
    "tool": ({"tool": "read"}, lambda row: "read" in row["tools"]),
    "channel": ({"channel": "web"}, lambda row: row["channel"] == "web"),
    "versions": ({"from": "33", "to": "35"}, lambda row: 33 <= row["version"] <= 35),
    "purpose": ({"purpose": "train"}, lambda row: row["purpose"] == "train"),
    "fate": ({"fate": "waiting"}, lambda row: row["fate"] == "waiting"),
    "reward": ({"least": "0.4", "most": "0.7"}, lambda row: 0.4 <= row["normalised"] <= 0.7),
    "reason": ({"reason": "no such reason"}, lambda row: row["reason"] == "no such reason"),
    "step": ({"step": "3"}, lambda row: row["step"] == 3),
}
"""Filters of the list, and what they mean for a row of `trajectory_facts`."""
ORDERS = {
    "time": "ended_at",
    "reward": "normalised",
    "advantage": "advantage",
    "version": "version",
    "tokens": "sampled_tokens",
    "turns": "turns",
    "feedback": "signals",
}
"""Value of the parameter ``sort`` → column of `trajectory_facts`."""


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("sort", ORDERS)
def test_the_list_is_that_of_all_facts_by_whatever_it_is_filtered_and_sorted(
    pages: Pages, name: str, sort: str
) -> None:
    parameters, matches = CHOSEN[name]
    expected = sorted((row for row in pages.facts() if matches(row)), key=lambda row: row["trajectory_id"])
    known = [row for row in expected if row[ORDERS[sort]] is not None]
    known.sort(key=lambda row: row[ORDERS[sort]], reverse=True)
    expected = known + [row for row in expected if row[ORDERS[sort]] is None]
    found = pages.rows("trajectories", "/explore", sort=sort, limit="20", **parameters)
    assert [row["trajectory_id"] for row in found] == [row["trajectory_id"] for row in expected[:20]]
    assert {row["matching"] for row in found} <= {len(expected)}
    for row, facts in zip(found, expected, strict=False):
        assert (row["reward"], row["fate"], row["advantage"], row["signals"], row["tenant"]) == (
            facts["normalised"], facts["fate"], facts["advantage"], facts["signals"], facts["tenant"]
        )  # fmt: skip


def test_rewards_of_trajectories_without_a_row_are_in_the_slices_of_those_without_labels(pages: Pages) -> None:
    # Rows of `trajectories` expire earlier than rewards.
    pages.insert(
        "INSERT INTO rewards (id_sent, logged_at, trajectory_id, run, spec, purpose, role, oldest_version, total, "
        "maximum, normalised) SELECT concat('r', toString(number)), now64(3), concat('t', toString(number)), "
        "'expired', 's', 'train', 'trainable', 1, 1, 1, 1 FROM numbers(3)"
    )
    pages.insert(
        "INSERT INTO trajectories (id_sent, logged_at, trajectory_id, run, purpose, role, oldest_version, task_source, "
        "tools, sampled_tokens) SELECT 't2', now64(3), 't2', 'expired', 'train', 'trainable', 1, 'wide', "
        "map('grep', 2), 99"
    )
    for chosen, series in (
        ({}, {"train": 3}),
        ({"source": NONE}, {"train": 2}),
        ({"source": "wide"}, {"train": 1}),
        ({"length": "under 64"}, {"train": 2}),
        ({"tool": "grep", "tenant": NONE}, {"train": 1}),
        ({"source": "deep"}, {}),
        ({"by": "source"}, {NONE: 2, "wide": 1}),
        ({"by": "source", "tool": "grep"}, {"wide": 1}),
        ({"by": "tool", "source": NONE}, {NONE: 2}),
    ):
        if "by" not in chosen:
            rows = pages.rows("rewards", "/compare", a_run="expired", b_run="expired", **chosen)
            counted = [(row["n_a"], row["n_b"]) for row in rows if row["measure"] == "reward"]
            n = sum(series.values())
            assert counted == ([(n, n)] if n else []), chosen
        for name in ("reward", "reward_distribution"):
            rows = pages.rows(name, run="expired", **chosen)
            if name == "reward" or "by" not in chosen:
                assert sum(row["trajectories"] for row in rows) == sum(series.values()), (name, chosen)
            if name == "reward":
                assert {row["series"]: row["trajectories"] for row in rows} == series, chosen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path or "/")
def test_every_column_that_a_specification_names_is_in_the_result(pages: Pages, page: Any) -> None:
    sides = {"a_run": "cut", "b_run": "cut"} if page.path == "/compare" else {}
    for panel in page.panels:
        columns = {
            *(axis.column for axis in (panel.x, *panel.values) if axis),
            panel.series,
            panel.low,
            panel.high,
            panel.n,
        }
        rows = pages.rows(panel.name, page.path, **sides)
        if rows:
            assert columns - {""} <= rows[0].keys(), panel.name
        if panel.form in (Form.LINE, Form.STEPS, Form.BARS, Form.DISTRIBUTION):
            assert panel.x, panel.name
            assert panel.values, panel.name
