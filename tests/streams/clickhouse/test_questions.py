"""The views and the queries of the page QUESTIONS.md give the known answers, also when everything is stored twice."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from headrace.streams.clickhouse.views import VIEWS
from tests.streams.clickhouse.shop import ATTEMPTS, PRICES, shop_log

pytestmark = pytest.mark.clickhouse
PAGE = Path(__file__).parents[3] / "deploy" / "clickhouse" / "QUESTIONS.md"
QUESTIONS = dict(re.findall(r"```sql (\S+)\n(.*?)\n```", PAGE.read_text(), re.S))


@pytest.fixture(scope="module")
def reader(clickhouse_accounts: dict[str, str]) -> Iterator[Client]:
    """Client of the read-only user on a database that holds the shop's log, each record twice."""
    writer = open_client(clickhouse_accounts["writer"])
    ensure_tables(writer)
    set_prices(writer, PRICES, "USD")
    log = shop_log()
    for token in ("first", "again", "again"):
        log.write(writer, token)
    client = open_client(clickhouse_accounts["reader"])
    yield client
    client.close()
    writer.close()


def shown(value: Any) -> str:
    """A value as the page shows it."""
    if isinstance(value, float):
        return f"{value:g}"
    return {None: "NULL", "": "''"}.get(value, str(value)) if not isinstance(value, list) else str(value)


def as_page(rows: Sequence[Sequence[Any]]) -> str:
    return " ".join(", ".join(map(shown, row)) for row in rows)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_the_answer_on_the_page(reader: Client, name: str) -> None:
    lines = QUESTIONS[name].split("\n")
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    expected = " ".join(" ".join(line.removeprefix("--") for line in lines if line.startswith("--")).split())
    assert as_page(reader.query(sql).result_rows) == expected


def test_the_page_has_twelve_questions_and_lists_them() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^## (\d+\. .*)$", text, re.M)
    assert len(QUESTIONS) == len(headings) == 12
    assert re.findall(r"^\d+\. \[(.*)\]\(", text, re.M) == [heading.partition(". ")[2] for heading in headings]


@pytest.mark.parametrize(
    ("view", "rows"),
    {
        "rewards_latest": 8, "events_with_trajectory": 24, "trajectory_facts": 8, "messages": 16, "turns": 16,
        "tool_calls": 16, "model_calls": 8, "costs": 8, "reward_by_hour": 4, "components_by_hour": 8, "task_stats": 2,
        "feedback_coverage": 2,
    }.items(),
)  # fmt: skip
def test_a_view_has_each_row_once(reader: Client, view: str, rows: int) -> None:
    assert reader.query(f"SELECT * FROM {view}").row_count == rows


def test_every_view_is_counted_above() -> None:
    (mark,) = test_a_view_has_each_row_once.pytestmark  # type: ignore[attr-defined]
    assert {view for view, _ in mark.args[1]} == {view.name for view in VIEWS}


def test_a_trajectory_has_its_reward_fate_and_feedback_in_one_row(reader: Client) -> None:
    rows = reader.query(
        "SELECT trajectory_id, task_source, difficulty, version, reward, fate, step, reason, advantage, success, "
        "feedback_delay_s FROM trajectory_facts ORDER BY trajectory_id"
    ).result_rows
    assert rows == [
        ("a1", "wide", "1", 3, 0.2, "trained", 4, "", -0.3, 0, None),
        ("a2", "wide", "1", 3, 0.8, "trained", 4, "", 0.3, 1, 30.0),
        ("a3", "deep", "3", 3, 0.0, "rejected", 0, "zero_variance_all_fail", None, 0, None),
        ("a4", "deep", "3", 3, 0.0, "rejected", 0, "zero_variance_all_fail", None, 0, None),
        ("b1", "wide", "1", 17, 1.0, "trained", 19, "", 0.2, 1, 60.0),
        ("b2", "wide", "1", 17, 0.6, "trained", 19, "", -0.2, 1, 600.0),
        ("b3", "deep", "3", 17, 0.5, "rejected", 0, "stale", 0.2, 1, None),
        ("b4", "deep", "3", 17, 0.1, "rejected", 0, "stale", -0.2, 0, None),
    ]


def test_sums_over_the_hours_are_those_of_the_trajectories(reader: Client) -> None:
    total, mean = reader.query(
        "SELECT sum(trajectories), sum(mean * scored) / sum(scored) FROM reward_by_hour WHERE run = 'r1'"
    ).result_rows[0]
    assert (total, mean) == (len(ATTEMPTS), pytest.approx(sum(one.reward for one in ATTEMPTS) / len(ATTEMPTS)))
    (formats,) = reader.query(
        "SELECT sum(mean * trajectories) FROM components_by_hour WHERE component = 'format'"
    ).result_rows[0]
    assert formats == pytest.approx(sum(one.format for one in ATTEMPTS))


def test_a_turn_has_its_tool_calls_and_a_component_its_details(reader: Client) -> None:
    turns = reader.query(
        "SELECT turn, sampled, pruned, summarized, calls FROM turns WHERE trajectory_id = 'b1' ORDER BY turn"
    )
    assert turns.result_rows == [(0, 390, 3, 0, 2), (1, 10, 0, 1, 0)]
    details = reader.query("SELECT details FROM rewards_latest WHERE trajectory_id = 'b1'").result_rows
    assert details == [({"format.brackets": 0.5},)]
