"""Panels against the same figures computed here from the rows: means, intervals, falls, comparisons."""

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest

from headrace.deploy.dashboard.certainty import FEW, Z
from headrace.deploy.dashboard.compare_panels import COMPARE_PANELS, TIE
from headrace.deploy.dashboard.panel import Columns, Panel, read_panel
from headrace.deploy.dashboard.selection import COMPARED, selection
from headrace.deploy.dashboard.slice_panels import SPAN
from headrace.streams.clickhouse.columns import Row, arrow_table
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.tables import EVENTS, REWARDS, TRAJECTORIES
from tests.deploy.dashboard.panel_rows import panel_rows
from tests.streams.clickhouse.stored_log import NOW_MS

pytestmark = pytest.mark.clickhouse
VERSIONS = range(20)


@dataclass(frozen=True)
class Attempt:
    """A rollout with its reward, in the run's own words."""

    id: str
    run: str
    version: int
    source: str
    reward: float
    group: str = ""
    task: str = ""
    evaluation: str | None = None
    tools: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        return self.group or self.task or self.id


def asynchronous(rng: random.Random) -> Iterator[Attempt]:
    """The run ``mixed``: groups of eight whose attempts are alike, and by policies of up to three versions; in one
    source they get worse; evaluations whose label is that of a line."""
    for number in range(400):
        group, source = f"g{number}", ("even", "falls", "")[number % 3]
        version = number // 20
        level = rng.random() - (0.3 if source == "falls" and version >= 12 else 0)
        for member in range(8):
            late = min(version + rng.choice((0, 0, 1, 2)), VERSIONS[-1])
            tools = ("search",) if member % 2 else ()
            yield Attempt(
                f"m{number}-{member}", "mixed", late, source, min(max(level + rng.gauss(0, 0.01), 0), 1),
                group, f"t{number % 30}", tools=tools,
            )  # fmt: skip
    for number in range(60):
        yield Attempt(f"e{number}", "mixed", number % 3, "even", 0.0, task=f"t{number % 7}", evaluation="train")


def broken() -> Iterator[Attempt]:
    """The run ``broken``: in one source every attempt succeeds until version 10, and none after it."""
    for version in VERSIONS:
        for source in ("breaks", "stays"):
            for member in range(16):
                reward = float(source == "stays" or version < 10)
                group = f"b{version}-{source}-{member // 4}"
                yield Attempt(f"{group}-{member}", "broken", version, source, reward, group, f"t-{source}")


CLOSE: dict[str, tuple[float | None, float | None]] = {
    "even": (0.0, 0.0),
    "as good as even": (0.0, 0.01),
    "better": (0.0, 0.015),
    "worse": (0.015, 0.0),
    "": (0.0, 1.0),
    "unscored": (0.5, None),
}
"""Task → its reward in the two versions of the run ``close``."""


def sided() -> Iterator[tuple[Attempt, Row]]:
    """The run ``sided``: two attempts at one task by each of six versions, besides them one by a frozen policy, and one
    whose version is not known. Another one by each version has no run. The run ``close``: two versions with attempts at
    tasks, whose rewards differ by little, and without a task. The run ``unversioned``. With the columns that say so."""
    for version in range(1, 7):
        reward = version / 10
        for member in range(2):
            yield Attempt(f"s{version}-{member}", "sided", version, "even", reward, task="t"), {"role": "trainable"}
        yield Attempt(f"s{version}-frozen", "sided", version, "even", 0.0, task="t"), {"role": "frozen"}
        yield Attempt(f"s{version}-unknown", "sided", 0, "even", 0.0, task="t"), {"oldest_version": None}
        yield Attempt(f"s{version}-alone", "", version, "alone", 0.0, task="t"), {"role": "trainable"}
    for task, (first, second) in CLOSE.items():
        for version, reward in ((1, first), (2, second)):
            unscored: Row = {"normalised": None} if reward is None else {}
            yield Attempt(f"c{version}-{task}", "close", version, "even", reward or 0.0, task=task), unscored
    yield Attempt("c1-unscored", "close", 1, "even", 0.0, task="even"), {"normalised": None}
    yield Attempt("n", "unversioned", 0, "even", 1.0), {"oldest_version": None}


def stored(attempt: Attempt, offset: int) -> tuple[Row, Row]:
    """Returns the rows of an attempt in `trajectories` and `rewards`."""
    purpose = "train" if attempt.evaluation is None else "evaluate"
    both = {
        "time": NOW_MS, "logged_at": NOW_MS, "offset": offset, "trajectory_id": attempt.id, "run": attempt.run,
        "group_id": attempt.group, "task_id": attempt.task, "purpose": purpose, "agent": "a",
        "oldest_version": attempt.version, "ended_at": NOW_MS,
    }  # fmt: skip
    calls = {"tools": [(name, 1) for name in attempt.tools], "call_tools": list(attempt.tools)}
    calls |= {"call_statuses": ["error"] * len(attempt.tools)}
    labels = {"task_source": attempt.source, "evaluation": attempt.evaluation or "", "sampled_tokens": 10}
    trajectory = {**both, "id_sent": f"t-{attempt.id}", **labels, **calls}
    total = {"total": 2 * attempt.reward, "maximum": 2.0, "normalised": attempt.reward}
    return trajectory, {**both, "id_sent": f"r-{attempt.id}", "spec": "s@1", **total}


class Records:
    """The attempts, and panels of pages over the tables that hold them."""

    def __init__(self, url: str) -> None:
        self._client = open_client(url)
        ensure_tables(self._client)
        self.attempts = [*asynchronous(random.Random(5)), *broken()]
        both = [stored(each, offset) for offset, each in enumerate(self.attempts)]
        for each, columns in sided():
            trajectory, reward = stored(each, len(both))
            about = {name: value for name, value in columns.items() if name != "normalised"}
            both.append((trajectory | about, reward | columns))
        for table, rows in ((TRAJECTORIES, [row for row, _ in both]), (REWARDS, [row for _, row in both])):
            insert(self._client, table, arrow_table(table, rows), f"recomputed:{table.name}")
        compute_missing(self._client)

    def of(self, run: str, source: str | None = None) -> list[Attempt]:
        """Returns the training rollouts of ``run``."""
        found = [each for each in self.attempts if each.run == run and each.evaluation is None]
        return [each for each in found if source is None or each.source == source]

    def rows(self, name: str, path: str = "", **chosen: str) -> list[dict[str, Any]]:
        """Returns the rows of a panel."""
        return panel_rows(self._client, name, path, **chosen)

    def columns(self, panel: Panel, parameters: Mapping[str, str]) -> Columns:
        """Returns the columns of a panel with ``parameters`` as they are."""
        return read_panel(self._client, panel, parameters)

    def add_event(self, time_ms: int) -> None:
        """Store an event of the time ``time_ms``, Unix milliseconds."""
        row: Row = {"time": time_ms, "logged_at": time_ms, "offset": 0, "id_sent": f"e{time_ms}", "trajectory_id": "e"}
        insert(self._client, EVENTS, arrow_table(EVENTS, [row | {"type": "headrace.tool.called.v1"}]), f"e{time_ms}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@pytest.fixture(scope="module")
def records(clickhouse: str) -> Iterator[Records]:
    records = Records(clickhouse)
    yield records
    records.close()


def mean_and_error(clusters: Mapping[str, list[float]]) -> tuple[float, float]:
    """Returns the mean of all values, and its clustered standard error, by the residuals of each cluster."""
    values = [value for each in clusters.values() for value in each]
    mean, count = fmean(values), len(clusters)
    residuals = [sum(value - mean for value in each) for each in clusters.values()]
    return mean, sqrt(sum(each**2 for each in residuals) * count / (count - 1)) / len(values)


def by_cluster(attempts: Iterable[Attempt]) -> dict[str, list[float]]:
    found = defaultdict[str, list[float]](list)
    for each in attempts:
        found[each.cluster].append(each.reward)
    return found


def falls(attempts: list[Attempt]) -> dict[int, tuple[float, float]]:
    """Returns, for each version with enough attempts around it, by how much the mean changes there, and its error. A
    group is one cluster, wherever its attempts were sampled, and counts at its oldest version."""
    oldest = {each.cluster: min(one.version for one in attempts if one.cluster == each.cluster) for each in attempts}
    found = {}
    for since in VERSIONS:
        before = [each for each in attempts if since - SPAN <= oldest[each.cluster] < since]
        after = [each for each in attempts if since <= oldest[each.cluster] < since + SPAN]
        if min(len(before), len(after)) >= FEW:
            (m0, e0), (m1, e1) = mean_and_error(by_cluster(before)), mean_and_error(by_cluster(after))
            found[since] = m1 - m0, sqrt(e0**2 + e1**2)
    return found


@pytest.mark.parametrize("source", ["even", "falls"])
def test_the_largest_fall_of_a_slice_and_its_interval_where_groups_are_of_several_versions(
    records: Records, source: str
) -> None:
    (row,) = (row for row in records.rows("falls", run="mixed") if row["slice"] == source)
    expected = falls(records.of("mixed", source))
    since = min(expected, key=lambda each: expected[each][0] / expected[each][1])
    change, error = expected[since]
    assert row["since"] == since
    assert row["change"] == pytest.approx(change)
    assert row["high"] - row["low"] == pytest.approx(2 * Z * error)
    assert row["errors"] == pytest.approx(change / error, abs=0.051)
    assert row["verdict"] == ("clear" if change < -4 * error else "may be chance")


def test_a_fall_from_all_to_nothing_is_found_where_it_happens(records: Records) -> None:
    """Its standard error is 0: no fall is clearer."""
    (row,) = (row for row in records.rows("falls", run="broken") if row["slice"] == "breaks")
    assert (row["since"], row["before"], row["after"], row["change"]) == (10, 1, 0, -1)
    assert (row["errors"], row["low"], row["high"], row["verdict"]) == (None, -1, -1, "clear")
    assert "stays" not in {row["slice"] for row in records.rows("falls", run="broken")}


def test_means_and_intervals_by_version(records: Records) -> None:
    rows = {row["version"]: row for row in records.rows("reward", run="mixed") if row["series"] == "train"}
    assert set(rows) == set(VERSIONS)
    for version, row in rows.items():
        attempts = [each for each in records.of("mixed") if each.version == version]
        mean, error = mean_and_error(by_cluster(attempts))
        assert (row["trajectories"], row["reward"]) == (len(attempts), pytest.approx(mean)), version
        assert row["high"] - row["low"] == pytest.approx(2 * Z * error), version


def test_evaluations_called_as_a_line_of_the_chart_have_one_of_their_own(records: Records) -> None:
    rows = records.rows("reward", run="mixed")
    assert {row["series"] for row in rows} == {"train", "evaluation train"}
    assert sum(row["trajectories"] for row in rows if row["series"] == "evaluation train") == 60


SIDES = {"a_run": "mixed", "a_to": "9", "b_run": "mixed", "b_from": "10"}


def test_wins_losses_and_the_mean_difference_by_task(records: Records) -> None:
    sides = [[each for each in records.of("mixed") if (each.version > 9) == later] for later in (False, True)]
    means = [
        {task: fmean(each.reward for each in side if each.task == task) for task in {each.task for each in side}}
        for side in sides
    ]
    differences = [means[1][task] - means[0][task] for task in means[0].keys() & means[1].keys()]
    (score,) = records.rows("score", "/compare", **SIDES)
    assert score["tasks"] == len(differences)
    assert score["b_wins"] == sum(each > TIE for each in differences)
    assert score["a_wins"] == sum(each < -TIE for each in differences)
    assert score["mean"] == pytest.approx(fmean(differences))
    assert score["half"] == pytest.approx(Z * stdev(differences) / sqrt(len(differences)))


def counted(records: Records, **sides: str) -> dict[str, tuple[int, int]]:
    """Returns how many attempts each panel of a comparison counts on its two sides."""
    found: dict[str, tuple[int, int]] = {}
    for panel, measure in (("rewards", "reward"), ("lengths", "turns")):
        rows = {row["measure"]: row for row in records.rows(panel, "/compare", **sides)}
        found[panel] = (rows[measure]["n_a"], rows[measure]["n_b"]) if measure in rows else (0, 0)
    for panel in ("reward_distribution", "length_distribution"):
        held = {row["side"]: row["trajectories"] for row in records.rows(panel, "/compare", **sides)}
        found[panel] = (held.get("A", 0), held.get("B", 0))
    tasks = records.rows("tasks", "/compare", **sides)
    found["tasks"] = (tasks[0]["n_a"], tasks[0]["n_b"]) if tasks else (0, 0)
    return found


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        ({"a_from": "2", "a_to": "3"}, {"b_from": "4", "b_to": "6"}, (4, 6)),
        ({"a_to": "1"}, {"b_from": "6"}, (2, 2)),
        ({"a_from": "5", "a_to": "5"}, {}, (2, 12)),
        ({"a_from": "2", "a_to": "5"}, {"b_from": "4", "b_to": "6"}, (8, 6)),
    ],
    ids=["apart", "first and last", "one and all", "overlapping"],
)
def test_a_side_has_the_versions_from_its_first_to_its_last_one_without_frozen_policies(
    records: Records, a: dict[str, str], b: dict[str, str], n: tuple[int, int]
) -> None:
    found = counted(records, a_run="sided", b_run="sided", **a, **b)
    assert found == dict.fromkeys(found, n)


def test_a_side_without_a_run_is_empty_although_some_trajectories_have_none(records: Records) -> None:
    found = counted(records, b_run="sided")
    assert found.pop("tasks") == (0, 0)
    assert found == dict.fromkeys(found, (0, 12))
    choices = records.rows("choices", "/compare", b_run="sided")
    assert {row["slice"] for row in choices if row["kind"] == "source"} == {"even"}


def test_the_runs_that_can_be_compared_have_a_name_and_known_versions(records: Records) -> None:
    rows = {row["run"]: (row["first"], row["last"]) for row in records.rows("runs", "/compare")}
    assert rows == {"mixed": (0, 19), "broken": (0, 19), "sided": (1, 6), "close": (1, 2)}


def test_evaluations_are_compared_instead_if_they_are_chosen(records: Records) -> None:
    found = counted(records, a_run="mixed", a_to="0", b_run="mixed", kind="evaluate")
    tasks = found.pop("tasks")
    assert found == dict.fromkeys(found, (20, 60))
    assert tasks[0] < tasks[1]


def test_a_client_of_the_queries_that_chooses_no_kind_gets_training_rollouts(records: Records) -> None:
    (panel,) = (each for each in COMPARE_PANELS if each.name == "lengths")
    train = records.columns(panel, selection(COMPARED, SIDES))
    assert train["n_a"]
    assert records.columns(panel, selection(COMPARED, SIDES) | {"kind": ""}) == train


def test_a_task_is_won_by_more_than_a_hundredth_and_needs_a_name_and_rewards_on_both_sides(records: Records) -> None:
    sides = {"a_run": "close", "a_to": "1", "b_run": "close", "b_from": "2"}
    rows = records.rows("tasks", "/compare", **sides)
    assert {row["task_id"]: (row["verdict"], row["n_a"], row["n_b"]) for row in rows} == {
        "even": ("tie", 1, 1),
        "as good as even": ("tie", 1, 1),
        "better": ("B wins", 1, 1),
        "worse": ("A wins", 1, 1),
    }
    (score,) = records.rows("score", "/compare", **sides)
    assert (score["a_wins"], score["b_wins"], score["ties"], score["tasks"]) == (1, 1, 2, 4)


@pytest.mark.parametrize(("panel", "measure", "on_a"), [("tools", "search", 1.0), ("lengths", "sampled tokens", 10.0)])
def test_what_a_side_lacks_is_no_zero_and_no_difference(
    records: Records, panel: str, measure: str, on_a: float
) -> None:
    """The run ``broken`` has no tool calls, the run ``none`` has nothing."""
    other = "broken" if panel == "tools" else "none"
    rows = records.rows(panel, "/compare", a_run="mixed", b_run=other)
    (row,) = (row for row in rows if row["measure"] == measure)
    assert (row["a"], row["b"], row["difference"], row["low"], row["n_b"]) == (on_a, None, None, None, 0)


def test_events_dated_by_a_clock_that_is_ahead_are_not_of_the_last_minutes(records: Records) -> None:
    """They would count for ever."""
    before = records.rows("pace")[0]["events_a_minute"], records.rows("topics", "/fleet")
    records.add_event(time.time_ns() // 1_000_000 + 30 * 86_400_000)
    assert (records.rows("pace")[0]["events_a_minute"], records.rows("topics", "/fleet")) == before
    records.add_event(time.time_ns() // 1_000_000)
    assert records.rows("pace")[0]["events_a_minute"] == before[0] + 1
