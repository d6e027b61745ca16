"""Dashboards and alert rules for Grafana: every query runs, and what a panel names is in its result."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from headrace.deploy.cli import cli
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import Form
from headrace.deploy.grafana.alert_rules import RULES, When
from headrace.deploy.grafana.dashboards import SHOWN, UNITS, dashboard
from headrace.deploy.grafana.datasource import UID
from headrace.deploy.grafana.files import files
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.seed import seed_run
from tests.deploy.grafana.macros import Range, expanded, with_variables

PAGE_OF = {page.path: page for page in PAGES}
DASHBOARDS = {shown.uid: dashboard(shown, PAGE_OF[shown.path]) for shown in SHOWN if shown.path in PAGE_OF}
TRICKY = "it's a \\ run"
"""A run's name that must be quoted."""


@pytest.fixture(scope="module")
def client(clickhouse: str) -> Iterator[Client]:
    opened = open_client(clickhouse)
    seed_run(opened, "rising", versions=12)
    seed_run(opened, TRICKY, versions=3, seed=1)
    yield opened
    opened.close()


def panels() -> list[Any]:
    return [
        pytest.param(panel, id=f"{uid}-{panel['id']}-{panel['title']}")
        for uid, each in DASHBOARDS.items()
        for panel in each["panels"]
        if panel["type"] != "row"
    ]


@dataclass
class Result:
    """A result with its columns, which the client forgets if there are no rows."""

    columns: list[str]
    rows: list[list[Any]]


def ask(client: Client, sql: str, **options: Any) -> Result:
    found = json.loads(client.raw_query(sql, fmt="JSONCompact", **options))
    return Result([column["name"] for column in found["meta"]], found["data"])


def run_query(client: Client, sql: str, run: str) -> Result:
    now_ms = int(time.time() * 1000)
    return ask(client, expanded(with_variables(sql, {"run": run}), Range(now_ms - 3_600_000, now_ms)))


def names_in(panel: dict[str, Any]) -> set[str]:
    """The columns that a panel's options name."""
    named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    for each in panel["transformations"]:
        named |= {each["options"][name] for name in ("columnField", "rowField", "valueField")}
    if not panel["transformations"] and (x := panel["options"].get("xField")):
        named.add(x)
    return named


@pytest.mark.clickhouse
@pytest.mark.parametrize("panel", panels())
def test_every_query_runs_and_has_the_columns_that_its_panel_names(client: Client, panel: dict[str, Any]) -> None:
    (target,) = panel["targets"]
    assert target["datasource"]["uid"] == UID
    result = run_query(client, target["rawSql"], "rising")
    unknown = names_in(panel) - set(result.columns)
    assert not unknown, f"{unknown} are not in {result.columns}"
    if (x := panel["options"].get("xField")) and panel["type"] == "trend":
        at = result.columns.index(x.partition("\\")[0])
        values = [row[at] for row in result.rows]
        assert values == sorted(values), "a trend needs rising x"
    run_query(client, target["rawSql"], TRICKY)
    run_query(client, target["rawSql"], "")


@pytest.mark.clickhouse
def test_the_same_figures_as_on_the_page(client: Client) -> None:
    """Of the panels that no time restricts, as many rows as the page's query has."""
    compared = 0
    for shown in SHOWN:
        page = PAGE_OF.get(shown.path)
        for panel in page.panels if page else ():
            if panel.form is Form.DATA or panel.window_s or not panel.values or panel.x is None:
                continue
            parameters = {each.name: each.default for each in page.parameters} | {"run": "rising"}  # type: ignore[union-attr]
            found = ask(client, panel.sql, parameters=parameters)
            at = found.columns.index(panel.x.column)
            rows = [row for row in found.rows if row[at] is not None]
            (drawn,) = (each for each in DASHBOARDS[shown.uid]["panels"] if each["title"] == panel.heading)
            assert len(run_query(client, drawn["targets"][0]["rawSql"], "rising").rows) == len(rows)
            compared += bool(rows)
    assert compared > 10


@pytest.mark.clickhouse
def test_the_runs_can_be_chosen(client: Client) -> None:
    for each in DASHBOARDS.values():
        (variable,) = each["templating"]["list"]
        rows = client.query(variable["query"]["rawSql"]).result_rows
        assert {"rising", TRICKY} <= {value for value, _ in rows}
    (variable,) = DASHBOARDS["headrace-overview"]["templating"]["list"]
    assert ("", "all runs") in client.query(variable["query"]["rawSql"]).result_rows


@pytest.mark.clickhouse
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.uid)
def test_every_rule_is_a_query_with_at_most_one_number(client: Client, rule: Any) -> None:
    result = ask(client, rule.sql)
    assert result.columns == ["value"]
    assert len(result.rows) <= 1
    assert "$" not in rule.sql, "Grafana would take it for its own environment"


def alarms(client: Client, uid: str) -> bool:
    (rule,) = (each for each in RULES if each.uid == uid)
    rows = client.query(rule.sql).result_rows
    if not rows or rows[0][0] is None:
        return False
    value = float(rows[0][0])
    return value > rule.bound if rule.when is When.ABOVE else value < rule.bound


@pytest.mark.clickhouse
def test_rules_alarm_when_and_only_when_something_is_wrong(client: Client) -> None:
    def insert(table: str, columns: str, *rows: str) -> None:
        client.command(f"INSERT INTO {table} ({columns}) " + " UNION ALL ".join(f"SELECT {row}" for row in rows))

    quiet = ["dead-letters", "lag", "sink-silent", "no-steps", "samplers-silent", "sdk-drops", "version-skew",
             "reward-drop", "held-out"]  # fmt: skip
    assert [name for name in quiet if alarms(client, f"headrace-{name}")] == []
    assert alarms(client, "headrace-critical"), "the seed has a critical alert"

    insert("dead_letters", "id_sent, logged_at, time, bad_topic", "'d', now64(3), now64(3), 'events'")
    assert alarms(client, "headrace-dead-letters")
    insert("lag", "time, consumer_group, topic, partition, records, seconds", "now64(3), 'g', 'events', 0, 9, 90")
    assert alarms(client, "headrace-lag")
    insert(
        "sdk_stats",
        "id_sent, logged_at, time, source, dropped",
        "'s1', now64(3), now64(3) - INTERVAL 20 MINUTE, 'a', map('full', 5)",
        "'s2', now64(3), now64(3), 'a', map('full', 7)",
    )
    assert alarms(client, "headrace-sdk-drops")
    insert("weights", "id_sent, time, run, version", "'w', now64(3), 'rising', 40")
    assert alarms(client, "headrace-version-skew")
    insert("steps", "id_sent, time, run, step", "'st', now64(3) - INTERVAL 2 HOUR, 'slow', 1")
    insert("budget", "id_sent, time, run, version, max_groups", "'b', now64(3), 'slow', 1, 8")
    assert alarms(client, "headrace-no-steps")
    insert(
        "trajectories",
        "id_sent, logged_at, time, run, trajectory_id",
        "'t', now64(3) - INTERVAL 1 HOUR, now64(3), 'slow', 'x'",
    )
    assert alarms(client, "headrace-samplers-silent")
    columns = "id_sent, time, ended_at, trajectory_id, run, purpose, oldest_version, normalised"
    client.command(
        f"INSERT INTO rewards ({columns}) SELECT concat('r', toString(number)), now64(3), now64(3), "
        "concat('r', toString(number)), 'falls', 'train', intDiv(number, 8), if(number < 160, 0.8, 0.4) "
        "FROM numbers(208)"
    )
    assert alarms(client, "headrace-reward-drop")


def test_uids_are_fixed_and_nothing_overlaps() -> None:
    uids = [each["uid"] for each in DASHBOARDS.values()] + [rule.uid for rule in RULES]
    assert len(set(uids)) == len(uids)
    assert all(uid.startswith("headrace-") and len(uid) <= 40 for uid in uids)
    assert {"headrace-overview", "headrace-trainer"} <= DASHBOARDS.keys()
    for each in DASHBOARDS.values():
        ids = [panel["id"] for panel in each["panels"]]
        assert len(set(ids)) == len(ids)
        cells = [
            (x, y)
            for panel in each["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells), "panels overlap"
        assert max(x for x, _ in cells) < 24


def test_every_unit_of_a_panel_has_one_in_grafana() -> None:
    assert {axis.unit for page in PAGES for panel in page.panels for axis in panel.values} <= UNITS.keys()


def test_the_command_writes_the_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["grafana", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    written = files(str(tmp_path / "out" / "dashboards"))
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")} == written.keys()
    for path, content in written.items():
        assert (tmp_path / "out" / path).read_text() == content
        json.loads(content)
    provider = json.loads(written["provisioning/dashboards/headrace.yaml"])["providers"][0]
    assert Path(provider["options"]["path"]) == tmp_path / "out" / "dashboards"


def test_macros_are_those_of_the_plugin() -> None:
    """The values are those of the plugin's own tests."""
    shown = Range(1415792726371, 1447328726371)
    cases = {
        "$__fromTime": "toDateTime(1415792726)",
        "$__toTime_ms": "fromUnixTimestamp64Milli(1447328726371)",
        "$__timeFilter(col)": "col >= toDateTime(1415792726) AND col <= toDateTime(1447328726)",
        "$__dateFilter(col)": "col >= toDate('2014-11-12') AND col <= toDate('2015-11-12')",
        "$__timeInterval(col)": "toStartOfInterval(toDateTime(col), INTERVAL 20 second)",
        "$__timeInterval_ms(col)": "toStartOfInterval(toDateTime64(col, 3), INTERVAL 20000 millisecond)",
        "$__interval_s": "20",
    }
    assert {macro: expanded(macro, shown) for macro in cases} == cases
    with pytest.raises(KeyError):
        expanded("$__unknown(col)", shown)
