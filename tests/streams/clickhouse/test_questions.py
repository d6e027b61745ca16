"""The views and the queries of the page QUESTIONS.md give the known answers, also when everything is stored twice."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.schemas.events import FeedbackGiven, ToolErrorClass, ToolStatus, TrajectoryStarted
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import ToolUse, Trajectory, Turn
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from headrace.streams.clickhouse.views import VIEWS
from tests.streams.clickhouse.shop import ATTEMPTS, HOUR_MS, PRICES, shop_log
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

pytestmark = pytest.mark.clickhouse
PAGE = Path(__file__).parents[3] / "deploy" / "clickhouse" / "QUESTIONS.md"
QUESTIONS = dict(re.findall(r"```sql (\S+)\n(.*?)\n```", PAGE.read_text(), re.S))


ENDED_MS = NOW_MS - HOUR_MS


@pytest.fixture(scope="module")
def writer(clickhouse_accounts: dict[str, str]) -> Iterator[Client]:
    """Client that may write, on a database with all tables."""
    client = open_client(clickhouse_accounts["writer"])
    ensure_tables(client)
    yield client
    client.close()


@pytest.fixture(scope="module")
def reader(clickhouse_accounts: dict[str, str], writer: Client) -> Iterator[Client]:
    """Client of the read-only user on a database that holds the shop's log, each record twice."""
    set_prices(writer, PRICES, "USD")
    log = shop_log()
    for token in ("first", "again", "again"):
        log.write(writer, token)
    client = open_client(clickhouse_accounts["reader"])
    yield client
    client.close()


def shown(value: Any) -> str:
    """A value as the page shows it."""
    if isinstance(value, float):
        return f"{value:g}"
    return {None: "NULL", "": "''"}.get(value, str(value)) if not isinstance(value, list) else str(value)


def answer(client: Client, name: str, run: str) -> Sequence[Sequence[Any]]:
    """The answer to a question about another run."""
    sql = "\n".join(line for line in QUESTIONS[name].split("\n") if not line.startswith("--"))
    return client.query(sql.replace("'r1'", f"'{run}'")).result_rows


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
        "rewards_latest": 10, "events_with_trajectory": 30, "trajectory_facts": 10, "messages": 20, "turns": 20,
        "tool_calls": 16, "model_calls": 10, "costs": 10, "reward_by_hour": 6, "components_by_hour": 12,
        "task_stats": 4, "feedback_coverage": 4, "episodes": 0,
    }.items(),
)  # fmt: skip
def test_a_view_has_each_row_once(reader: Client, view: str, rows: int) -> None:
    # The other runs of this module, which have no model calls, are not counted.
    of_shop = "" if view == "messages" else "WHERE run = 'r1'"
    assert reader.query(f"SELECT * FROM {view} {of_shop}").row_count == rows


def test_every_view_is_counted_above() -> None:
    (mark,) = test_a_view_has_each_row_once.pytestmark  # type: ignore[attr-defined]
    assert {view for view, _ in mark.args[1]} == {view.name for view in VIEWS}


def test_a_trajectory_has_its_reward_fate_and_feedback_in_one_row(reader: Client) -> None:
    rows = reader.query(
        "SELECT trajectory_id, task_source, difficulty, version, reward, fate, step, reason, advantage, success, "
        "feedback_delay_s FROM trajectory_facts WHERE run = 'r1' ORDER BY trajectory_id"
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
        ("e1", "deep", "3", 17, 0.9, "evaluation", 0, "", None, 1, None),
        ("f1", "deep", "3", 17, 0.9, "frozen", 0, "", None, 1, None),
    ]


def test_sums_over_the_hours_are_those_of_the_trajectories(reader: Client) -> None:
    total, mean = reader.query(
        "SELECT sum(trajectories), sum(mean * scored) / sum(scored) FROM reward_by_hour "
        "WHERE run = 'r1' AND purpose = 'train' AND role = 'trainable'"
    ).result_rows[0]
    assert (total, mean) == (len(ATTEMPTS), pytest.approx(sum(one.reward for one in ATTEMPTS) / len(ATTEMPTS)))
    (formats,) = reader.query(
        "SELECT sum(mean * trajectories) FROM components_by_hour "
        "WHERE run = 'r1' AND component = 'format' AND purpose = 'train' AND role = 'trainable'"
    ).result_rows[0]
    assert formats == pytest.approx(sum(one.format for one in ATTEMPTS))


def test_a_turn_has_its_tool_calls_and_a_component_its_details(reader: Client) -> None:
    turns = reader.query(
        "SELECT turn, sampled, pruned, summarized, calls FROM turns WHERE trajectory_id = 'b1' ORDER BY turn"
    )
    assert turns.result_rows == [(0, 390, 3, 0, 2), (1, 10, 0, 1, 0)]
    details = reader.query("SELECT details FROM rewards_latest WHERE trajectory_id = 'b1'").result_rows
    assert details == [({"format.brackets": 0.5},)]


def assembled(log: StoredLog, name: str, run: str, **fields: Any) -> None:
    """A trajectory without tokens that ended an hour ago."""
    start = TrajectoryStarted(task_id="task", agent="shop", run=run)
    at = Reference(partition=0, offset=0)
    whole = {"first": at, "last": at, "started_ms": ENDED_MS, "ended_ms": ENDED_MS, **fields}
    log.add("trajectories", name, Trajectory(trajectory_id=name, started=start, **whole), id=f"of {name}")


def test_attempts_and_coverage_are_counted_apart_from_evaluations_and_frozen_sub_agents(reader: Client) -> None:
    kinds = [("evaluate", "trainable"), ("train", "frozen"), ("train", "trainable")]
    attempts = reader.query(
        "SELECT purpose, role, attempts, pass_rate FROM task_stats WHERE run = 'r1' AND task_id = 'hard' ORDER BY 1, 2"
    ).result_rows
    assert attempts == [(*kinds[0], 1, 1.0), (*kinds[1], 1, 1.0), (*kinds[2], 4, 0.25)]
    coverage = reader.query(
        "SELECT purpose, role, trajectories, coverage FROM feedback_coverage WHERE run = 'r1' AND version = 17 "
        "ORDER BY 1, 2"
    ).result_rows
    assert coverage == [(*kinds[0], 1, 0.0), (*kinds[1], 1, 0.0), (*kinds[2], 4, 0.5)]


def test_the_delay_is_that_of_the_first_feedback_even_if_only_the_second_states_one(writer: Client) -> None:
    log = StoredLog()
    assembled(log, "late", "delays")
    for seconds, delay_s in ((30, None), (86_400, 86_400.0)):
        given = FeedbackGiven(signal="accepted", value=1.0, delay_s=delay_s)
        log.add("feedback", "late", given, id=f"after {seconds}", time_ms=ENDED_MS + seconds * 1000)
    log.write(writer, "delays")
    for sql in (
        "SELECT feedback_delay_s FROM trajectory_facts WHERE run = 'delays'",
        "SELECT median_delay_s FROM feedback_coverage WHERE run = 'delays'",
    ):
        assert writer.query(sql).result_rows == [(30.0,)]


def test_a_reward_that_feedback_made_or_unmade_is_a_change(writer: Client) -> None:
    log = StoredLog()
    for name, totals in (("made", (None, 0.9)), ("unmade", (0.9, None)), ("same", (0.9, 0.9)), ("never", (None, None))):
        for revision, total in enumerate(totals):
            record = Reward(
                trajectory_id=name, trajectory=Reference(partition=0, offset=0), run="changes", spec="s@1", total=total,
                maximum=1.0, revision=revision, ended_ms=ENDED_MS,
            )  # fmt: skip
            log.add("rewards", name, record, id=f"{name} {revision}")
    log.write(writer, "changes")
    assert answer(writer, "changed-by-feedback", "changes") == [("made", None, 0.9, 1), ("unmade", 0.9, None, 1)]


def test_a_tool_that_was_first_called_today_and_fails_is_found(writer: Client) -> None:
    log = StoredLog()
    failed = ToolUse(call_id="c", tool="new", status=ToolStatus.ERROR, error_class=ToolErrorClass.TIMEOUT)
    assembled(log, "first day", "tools", turns=[Turn(tools=[failed])])
    log.write(writer, "tools")
    (found,) = answer(writer, "tool-failures", "tools")
    assert (found[:2], math.isnan(found[2]), found[3:]) == (("shop", "new"), True, (1.0, "timeout", 1))


def test_a_difficulty_at_which_nothing_was_scored_has_no_pass_rate(writer: Client) -> None:
    log = StoredLog()
    assembled(log, "unscored", "unscored")
    log.write(writer, "unscored")
    assert answer(writer, "zero-variance", "unscored") == [("", 0, 0, 0, None)]
