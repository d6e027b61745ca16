"""The dashboard's panels as JSON, and the stream of snapshots."""

import csv
import io
import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from pyarrow import parquet

from headrace.deploy.dashboard.overview_panels import PANELS
from headrace.deploy.dashboard.page_html import STATIC
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import read_panel, to_columns
from headrace.deploy.dashboard.trainer_panels import MAX_POINTS, METRIC_CHARTS, TRAINER_PANELS
from headrace.deploy.system.ports import HOST, free_port
from headrace.streams.clickhouse.database import open_client
from headrace.trainer.learning.metric_registry import METRICS
from tests.deploy.dashboard.seed import COMPONENTS
from tests.deploy.dashboard.served import served


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def panel(dashboard: str, name: str, run: str = "rising", page: str = "") -> list[dict[str, Any]]:
    status, columns = get(f"{dashboard}{page}/api/panels/{name}?run={run}")
    assert status == 200
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.clickhouse
def test_the_reward_is_shown_by_version_and_kind(dashboard: str) -> None:
    rows = panel(dashboard, "reward")
    versions = {
        series: sorted(row["version"] for row in rows if row["series"] == series) for series in ("train", "greedy")
    }
    assert versions == {"train": list(range(12)), "greedy": [0]}
    (first,) = (row for row in rows if (row["series"], row["version"]) == ("train", 0))
    (last,) = (row for row in rows if (row["series"], row["version"]) == ("train", 11))
    assert last["reward"] > first["reward"]
    assert first["trajectories"] == 64


@pytest.mark.clickhouse
def test_the_components_add_up_to_the_reward(dashboard: str) -> None:
    reward = {row["version"]: row["reward"] for row in panel(dashboard, "reward") if row["series"] == "train"}
    parts: dict[int, float] = {}
    for row in panel(dashboard, "components"):
        parts[row["version"]] = parts.get(row["version"], 0) + row["share"]
    # The seed clamps totals at 0 as the reward does, so sums are slightly lower if skill is low.
    assert {version: pytest.approx(total, abs=0.02) for version, total in parts.items()} == reward


@pytest.mark.clickhouse
def test_each_component_is_shown_by_the_source_of_its_task(dashboard: str) -> None:
    rows = panel(dashboard, "sources")
    assert {row["series"] for row in rows} == {
        f"{source}: {component}" for source in ("wide", "deep") for component in COMPONENTS
    }
    recall = {row["version"]: row["value"] for row in rows if row["series"] == "wide: trajectory_recall"}
    assert 0 <= recall[0] < recall[11] <= 1
    assert set(recall) == set(range(12))


@pytest.mark.clickhouse
def test_every_group_and_every_trajectory_has_one_fate(dashboard: str) -> None:
    groups = panel(dashboard, "groups")
    assert sum(row["groups"] for row in groups) == 12 * 8
    assert {row["fate"] for row in groups} <= {"kept", "zero_variance_all_success", "zero_variance_all_fail"}
    (totals,) = panel(dashboard, "totals")
    fates = panel(dashboard, "fates")
    assert sum(row["trajectories"] for row in fates) == totals["started"]
    assert {row["fate"] for row in fates} == {"trained", "rejected", "pending"}


@pytest.mark.clickhouse
def test_staleness_is_against_the_version_that_was_trained(dashboard: str) -> None:
    rows = panel(dashboard, "staleness")
    assert rows
    assert all(0 <= row["median"] <= row["largest"] <= 1 for row in rows)


@pytest.mark.clickhouse
def test_one_run_or_all_runs_can_be_shown(dashboard: str) -> None:
    started = {run: panel(dashboard, "totals", run)[0]["started"] for run in ("rising", "", "begun")}
    assert 1 == started["begun"] < started["rising"] < started[""]
    assert {row["run"] for row in panel(dashboard, "runs")} == {"rising", "other <b>run</b>"}
    status, snapshot = get(f"{dashboard}/api/snapshot")
    assert (status, snapshot["problem"]) == (200, None)
    assert set(snapshot["panels"]) == {one.name for one in PANELS}
    assert snapshot["run"] == panel(dashboard, "runs")[0]["run"]


@pytest.mark.clickhouse
def test_the_steps_have_their_metrics_as_columns(dashboard: str) -> None:
    rows = panel(dashboard, "steps", page="/trainer")
    assert [row["step"] for row in rows] == [*range(1, 12)]
    assert rows[-1]["metrics.reward_mean"] > rows[0]["metrics.reward_mean"]
    assert {name.removeprefix("metrics.") for name in rows[0] if name.startswith("metrics.")} <= set(METRICS) | {
        "tokens_age_0", "tokens_age_1",
    }  # fmt: skip
    assert all(row["groups"] == 8 for row in rows)


@pytest.mark.clickhouse
def test_the_steps_of_a_long_run_are_thinned_out_but_include_the_newest(dashboard: str, clickhouse: str) -> None:
    client = open_client(clickhouse)
    client.command(
        "INSERT INTO steps (id_sent, run, step, version, metrics) "
        "SELECT toString(number), 'long', number + 1, number + 1, map('loss', number) FROM numbers(2005)"
    )
    rows = panel(dashboard, "steps", "long", "/trainer")
    assert len(rows) <= 2 * MAX_POINTS
    assert [row["step"] for row in rows[-3:]] == [2001, 2004, 2005]


@pytest.mark.clickhouse
def test_waiting_groups_rejections_and_alerts_of_a_trainer_are_shown(dashboard: str) -> None:
    (now,) = panel(dashboard, "now", page="/trainer")
    assert (now["step"], now["published"], now["skipped"]) == (11, 11, 1)
    trained = {row["fate"]: row["groups"] for row in panel(dashboard, "groups") if row["version"] == 11}
    assert now["groups_waiting"] == trained["kept"]  # those of the newest version, which no step has trained yet
    assert now["groups_in_flight"] == trained["kept"] + 1  # and one in flight; evaluations do not count
    assert (now["groups_granted"], now["groups_per_step"]) == (16, 8)
    assert panel(dashboard, "rejected", page="/trainer") == [{"reason": "stale", "trajectories": 3}]
    assert [row["kind"] for row in panel(dashboard, "alerts", page="/trainer")] == ["step_skipped"]


@pytest.mark.clickhouse
def test_a_run_without_a_budget_has_no_granted_groups(dashboard: str) -> None:
    (now,) = panel(dashboard, "now", "begun", "/trainer")
    assert (now["groups_in_flight"], now["groups_granted"]) == (0, None)


@pytest.mark.clickhouse
def test_the_trainers_page_shows_one_run_at_a_time(dashboard: str) -> None:
    for query in ("", "?run="):
        status, snapshot = get(f"{dashboard}/trainer/api/snapshot{query}")
        assert (status, set(snapshot["panels"])) == (200, {one.name for one in TRAINER_PANELS if not one.source})
        assert snapshot["run"] == snapshot["panels"]["runs"]["run"][0]


def test_every_metric_of_a_chart_is_declared() -> None:
    names = [axis.column.removeprefix("metrics.") for panel in METRIC_CHARTS for axis in panel.values]
    families = tuple(name[:-1] for name in METRICS if name.endswith("*"))
    assert {name for name in names if not name.startswith(families)} <= set(METRICS)
    assert len(set(names) & set(METRICS)) > 20
    script = (STATIC / "trainer.js").read_text()
    named = set(re.findall(r'"([a-z]+(?:_[a-z0-9]+)+)"', script)) - {panel.name for panel in METRIC_CHARTS}
    assert {name for name in named if not name.startswith(families)} <= set(METRICS)


@pytest.mark.clickhouse
def test_a_chart_of_metrics_has_its_own_query_and_the_result_of_the_steps(dashboard: str, clickhouse: str) -> None:
    client = open_client(clickhouse)
    for chart in METRIC_CHARTS:
        shown = panel(dashboard, chart.name, page="/trainer")
        queried = read_panel(client, chart, {"run": "rising"})
        assert [row["step"] for row in shown] == queried["step"] == [*range(1, 12)], chart.name
        for name, values in queried.items():
            assert values == [row.get(name) for row in shown], (chart.name, name)


@pytest.mark.clickhouse
def test_every_page_gives_the_specifications_of_its_panels(dashboard: str) -> None:
    for page in PAGES:
        status, specs = get(f"{dashboard}{page.path}/api/panels")
        assert (status, [spec["name"] for spec in specs]) == (200, [panel.name for panel in page.panels])
        assert all(spec["sql"] and spec["about"] and spec["title"] for spec in specs)
    (reward,) = (spec for spec in get(f"{dashboard}/api/panels")[1] if spec["name"] == "reward")
    assert (reward["form"], reward["x"]["unit"]) == ("line", "version")
    assert reward["values"][0]["unit"] == "share of the largest reward"
    assert reward["cuts"] == ["agent", "source", "tool", "tenant", "harness", "channel", "length"]


@pytest.mark.clickhouse
def test_a_panel_is_a_file_too(dashboard: str) -> None:
    rows = panel(dashboard, "reward")
    with urllib.request.urlopen(f"{dashboard}/api/panels/reward?run=rising&format=csv") as response:
        assert response.headers["content-disposition"] == 'attachment; filename="reward.csv"'
        lines = list(csv.DictReader(io.StringIO(response.read().decode())))
    assert [(line["series"], int(line["version"])) for line in lines] == [
        (row["series"], row["version"]) for row in rows
    ]
    assert [float(line["reward"]) for line in lines] == pytest.approx([row["reward"] for row in rows])
    with urllib.request.urlopen(f"{dashboard}/explore/api/panels/trajectories?run=rising&format=parquet") as response:
        table = parquet.read_table(io.BytesIO(response.read()))
    # A file has every trajectory that matches, the page the first 200.
    assert table.num_rows == table["matching"][0].as_py() > 200
    assert len(panel(dashboard, "trajectories", page="/explore")) == 200
    status, body = get(f"{dashboard}/api/panels/reward?format=xlsx")
    assert status == 400
    assert "csv or parquet" in body["problem"]


@pytest.mark.clickhouse
def test_a_run_that_does_not_exist_is_an_error_that_names_the_nearest(dashboard: str) -> None:
    for path in ("/api/snapshot?run=rsing", "/trainer/api/snapshot?run=rsing", "/api/panels/reward?run=rsing",
                 "/compare/api/snapshot?a_run=rising&b_run=rsing", "/explore/api/snapshot?run=rsing"):  # fmt: skip
        status, body = get(f"{dashboard}{path}")
        assert status == 404, path
        assert "There is no run 'rsing'. Is it 'rising'?" in body["problem"]


@pytest.mark.clickhouse
def test_a_parameter_that_cannot_be_is_an_error_that_names_what_can(dashboard: str) -> None:
    for path, said in (
        ("/api/snapshot?by=colour", "by is 'colour', but must be one of agent"),
        ("/stream?by=colour", "by is 'colour'"),
        ("/explore/api/panels/trajectories?from=v1", "from is 'v1'"),
        ("/compare/api/panels/rewards?a_length=nonsense", "a_length is 'nonsense', but must be one of under 64"),
    ):
        status, body = get(f"{dashboard}{path}")
        assert status == 400
        assert said in body["problem"]


@pytest.mark.clickhouse
def test_two_hundred_runs_are_listed_with_the_largest(dashboard: str, clickhouse: str) -> None:
    open_client(clickhouse).command(
        "INSERT INTO rewards (id_sent, trajectory_id, run, total, normalised, ended_at) "
        "SELECT toString(number), concat('many-', toString(number)), "
        "       if(number < 300, 'many-0-largest', concat('many-', toString(number))), 1, 1, "
        "       toDateTime64('2026-01-01 00:00:00', 3) + number FROM numbers(550)"
    )
    rows = {row["run"]: row for row in panel(dashboard, "runs")}
    assert len([name for name in rows if name.startswith("many-")]) == 251
    assert rows["many-0-largest"]["trajectories"] == 300
    assert {row["all_runs"] for row in rows.values()} == {len(rows)}


def test_the_meaning_of_each_metric_can_be_requested() -> None:
    with served(f"http://{HOST}:{free_port()}") as url:
        status, metrics = get(f"{url}/api/metrics")
    assert (status, metrics.keys()) == (200, METRICS.keys())
    assert metrics["effective_sample_size"]["threshold"] == "below 0.3"
    assert metrics["kl_k3"]["about"] == METRICS["kl_k3"].about


@pytest.mark.clickhouse
def test_an_unknown_panel_is_an_error_that_lists_the_panels(dashboard: str) -> None:
    status, body = get(f"{dashboard}/api/panels/nope")
    assert status == 404
    assert "staleness" in body["problem"]


@pytest.mark.clickhouse
def test_the_stream_sends_the_snapshot_and_then_only_changes(dashboard: str, clickhouse: str) -> None:
    with urllib.request.urlopen(f"{dashboard}/stream?run=rising") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        # Pulses, and events that tell of a slow query, come in between whenever a second has passed.
        lines = iter(stream.readline, b"")
        first = next(line for line in lines if line.startswith(b'data: {"run"'))
        assert json.loads(first.removeprefix(b"data: "))["run"] == "rising"
        assert next(line for line in lines if line.startswith((b"event: same", b'data: {"run"'))) == b"event: same\n"
        open_client(clickhouse).command("INSERT INTO weights (id_sent, run, version) SELECT 'new', 'rising', 99")
        # Panels that took long rest, so the change may come in several messages.
        changed: dict[str, Any] = {}
        while "totals" not in changed:
            line = stream.readline()
            assert line
            if line.startswith(b'data: {"run"'):
                message = json.loads(line.removeprefix(b"data: "))
                assert message["problem"] is None
                assert message["partial"]
                changed |= message["panels"]
        assert changed["totals"]["published"] == [99]
        assert changed.keys() <= {"totals", "versions", "lag", "pace"}


@pytest.mark.clickhouse
def test_without_tables_the_page_names_the_process_that_creates_them(clickhouse: str) -> None:
    open_client(clickhouse).command("CREATE DATABASE IF NOT EXISTS bare")
    with served(f"{clickhouse}/bare") as url:
        status, body = get(f"{url}/api/snapshot")
    assert status == 503
    assert "the sink creates them" in body["problem"]


def test_without_a_database_the_page_names_the_setting() -> None:
    with served(f"http://{HOST}:{free_port()}") as url:
        status, body = get(f"{url}/api/snapshot")
        with urllib.request.urlopen(url) as page:
            assert b"headrace" in page.read()
    assert status == 503
    assert "HEADRACE_CLICKHOUSE" in body["problem"]


def test_nan_and_infinity_are_null_in_json() -> None:
    assert to_columns(["a", "b"], [[1.0, float("nan"), float("inf")], ["x", None, "y"]]) == {
        "a": [1.0, None, None],
        "b": ["x", None, "y"],
    }
    assert to_columns(["a"], []) == {"a": []}


def test_a_column_of_maps_becomes_one_column_per_key() -> None:
    assert to_columns(["step", "m"], [[1, 2], [{"x": 1.0}, {"x": float("nan"), "y": 2.0}]]) == {
        "step": [1, 2],
        "m.x": [1.0, None],
        "m.y": [None, 2.0],
    }


def test_the_pages_load_nothing_from_other_sites() -> None:
    for file in STATIC.iterdir():
        if file.suffix in (".html", ".css", ".js") and not file.name.startswith("uPlot"):
            # The name of SVG's elements is no address: nothing is loaded from it.
            assert "://" not in file.read_text().replace("http://www.w3.org/2000/svg", ""), file.name
    assert "MIT" in (STATIC / "uPlot.LICENSE").read_text()
