"""The views match the log: revised rewards count once, and an event has its trajectory's agent and run."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.deploy.dashboard.compare_panels import COMPARE_PANELS
from headrace.deploy.dashboard.explore_panels import EXPLORE_PANELS
from headrace.deploy.dashboard.overview_panels import PANELS
from headrace.deploy.dashboard.panel import read_panel
from headrace.deploy.dashboard.selection import SLICED, selection
from headrace.deploy.dashboard.trainer_panels import TRAINER_PANELS
from headrace.deploy.watching.episodes import episodes
from headrace.schemas.events import ModelCalled, ToolCalled, TrajectoryStarted, Usage
from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

pytestmark = pytest.mark.clickhouse


def reward(trajectory: str, run: str, total: float | None, revision: int, spec: str = "s@1") -> Reward:
    return Reward(
        trajectory_id=trajectory, trajectory=Reference(partition=0, offset=0), run=run, spec=spec, total=total,
        maximum=2.0, revision=revision, group_id=f"{trajectory[:-1]}", oldest_version=0, ended_ms=1,
    )  # fmt: skip


@pytest.fixture
def client(clickhouse: str) -> Iterator[Client]:
    client = open_client(clickhouse)
    ensure_tables(client)
    for table in ("rewards", "events"):
        client.command(f"TRUNCATE TABLE {table}")
    yield client
    client.close()


def test_page_readme_and_log_agree_on_revised_rewards(client: Client) -> None:
    rng = random.Random(3)
    log, truth = StoredLog(), dict[str, tuple[int, float]]()
    revised = 0
    for number in range(2_000):
        name = f"t{number}"
        revisions = rng.choice((2, 3, 12)) if rng.random() < 0.05 else 1
        revised += revisions > 1
        for revision in range(revisions):
            total = round(rng.random() * 2, 3)
            spec = "s@2" if revision and number % 2 else "s@1"  # a new version came between revisions
            record = reward(name, "airline-gpt4o-tasks-00-24", total, revision, spec)
            for _ in range(1 + (rng.random() < 0.02)):  # a record may be written twice
                log.add("rewards", name, record, id=derived_id(name, spec, revision))
            truth[name] = max(truth.get(name, (-1, 0.0)), (revision, total))
    assert revised > 50
    log.write(client, "a")
    log.write(client, "b")  # a sink of another group, or one that lost its commits
    count, mean = len(truth), sum(total for _, total in truth.values()) / len(truth)

    panels, every = {panel.name: panel for panel in PANELS}, selection(SLICED, {})
    runs = read_panel(client, panels["runs"], every)
    assert (runs["trajectories"], runs["reward"]) == ([count], [pytest.approx(mean / 2)])
    series = read_panel(client, panels["reward"], every)
    assert (series["trajectories"], series["reward"]) == ([count], [pytest.approx(mean / 2)])

    page = (Path(__file__).parents[3] / "deploy" / "clickhouse" / "README.md").read_text()
    (query,) = re.findall(r"```sql airline-rewards\n(.*?)\n--", page, re.S)
    assert client.query(query).result_rows == [(count, 1 + len({name[:-1] for name in truth} - {"t"}), round(mean, 2))]
    # Earlier revisions stay visible, and a count must not include them.
    assert client.query("SELECT count() FROM rewards FINAL").result_rows[0][0] > count
    assert client.query("SELECT max(revision) FROM rewards").result_rows == [(11,)]


def test_rewards_latest_has_one_row_per_trajectory_in_log_order(client: Client) -> None:
    log = StoredLog()
    for spec, revision, total in (("a@1", 0, 0.1), ("a@1", 2, 0.4), ("a@1", 1, 0.3)):
        log.add("rewards", "t1", reward("t1", "r", total, revision, spec), id=f"t1{spec}{revision}")
    log.add("rewards", "t2", reward("t2", "r", 0.5, 0), id="t2-first")
    log.add("rewards", "t2", reward("t2", "r", None, 0), id="t2-second, written by an older release")
    # A new version between revisions, a new version that scores again, and another spec with a lower version.
    for name, *scores in (
        ("t3", ("s@1", 0, 0.1), ("s@2", 1, 0.9)),
        ("t4", ("s@9", 0, 0.1), ("s@9", 1, 0.2), ("s@10", 0, 0.8)),
        ("t5", ("s@3", 0, 0.1), ("other@1", 1, 0.7)),
    ):
        for spec, revision, total in scores:
            log.add("rewards", name, reward(name, "r", total, revision, spec), id=f"{name}{spec}{revision}")
    log.write(client, "latest")
    log.write(client, "written again")
    rows = client.query("SELECT trajectory_id, spec, total FROM rewards_latest ORDER BY ALL").result_rows
    assert rows == [
        ("t1", "a@1", 0.4),
        ("t2", "s@1", None),
        ("t3", "s@2", 0.9),
        ("t4", "s@10", 0.8),
        ("t5", "other@1", 0.7),
    ]


def test_every_panel_reads_rewards_through_the_view() -> None:
    for panel in (*PANELS, *TRAINER_PANELS, *COMPARE_PANELS, *EXPLORE_PANELS):
        # Or through the view's query, with a condition inside.
        inside = re.sub(
            r"\bFROM rewards WHERE .*? ORDER BY trajectory_id, spec, revision DESC", "", panel.sql, flags=re.S
        )
        assert not re.search(r"\b(?:FROM|JOIN)\s+rewards\b", inside), panel.name


def test_events_have_their_trajectorys_agent_only_through_the_view(client: Client) -> None:
    log = StoredLog()
    for name, agent in (("t-1", "checkout"), ("t-2", "search")):
        started = TrajectoryStarted(task_id=f"task of {name}", agent=agent, run="r", group_id="g", group_size=2)
        log.add("events", name, started, id=f"{name}-0", sequence=0)
        for sequence in range(1, 6):
            log.add("events", name, ToolCalled(call_id="1", tool="t"), id=f"{name}-{sequence}", sequence=sequence)
    log.add("events", "t-3", ToolCalled(call_id="1", tool="t"), id="t-3-1", sequence=1)  # its start is missing
    # A second start under the id of the first: the first is the trajectory's.
    again = TrajectoryStarted(task_id="other", agent="other", run="other", group_id=None)
    log.add("events", "t-1", again, id="t-1-again", sequence=0)
    log.write(client, "a")
    log.write(client, "b")
    counted = "SELECT agent, run, task_id, group_id, count() FROM events_with_trajectory GROUP BY ALL ORDER BY agent"
    assert client.query(counted).result_rows == [
        ("", "", "", "", 1),
        ("checkout", "r", "task of t-1", "g", 7),
        ("search", "r", "task of t-2", "g", 6),
    ]
    only = client.query(
        "SELECT count(), uniqExact(id) FROM events_with_trajectory WHERE agent = 'checkout'"
    ).result_rows
    assert only == [(7, 7)]
    for column in ("agent", "run", "task_id", "group_id"):
        with pytest.raises(DatabaseError, match=f"UNKNOWN_IDENTIFIER|`{column}`"):
            client.query(f"SELECT count() FROM events WHERE {column} = 'checkout'")


def test_a_message_without_content_has_none(client: Client) -> None:
    said = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "tool"},
        {"role": "user", "content": "null"},
        {"role": "user", "content": [{"type": "text"}]},
    ]
    log = StoredLog()
    log.add("events", "t", ModelCalled(model="m", messages=said), id="t-1", sequence=1)
    log.write(client, "messages")
    contents = client.query("SELECT content FROM messages ORDER BY position").result_rows
    assert [content for (content,) in contents] == ["", "", "null", '[{"type":"text"}]']


def test_calls_whose_prompts_were_not_counted_cost_null_and_are_numbered(client: Client) -> None:
    set_prices(client, {"m": [1.0, 2.0]}, "USD")
    log = StoredLog()
    for name, prompts in (("counted", (1000, 500)), ("partly", (1000, 0)), ("not", (0,))):
        for sequence, prompt in enumerate(prompts):
            usage = Usage(prompt_tokens=prompt, completion_tokens=100 if prompt else 0)
            log.add("events", name, ModelCalled(model="m", usage=usage), id=f"{name} {sequence}", sequence=sequence)
    log.write(client, "a")
    log.write(client, "b")
    costs = client.query("SELECT trajectory_id, calls, uncounted, cost FROM costs ORDER BY trajectory_id").result_rows
    assert costs == [("counted", 2, 0, 0.0019), ("not", 1, 1, None), ("partly", 2, 1, None)]
    calls = client.query("SELECT prompt_tokens FROM model_calls ORDER BY trajectory_id, seq").result_rows
    assert [prompt for (prompt,) in calls] == [1000, 500, None, 1000, None]


def test_an_episode_is_as_the_command_shows_it_however_often_it_is_stored(client: Client) -> None:
    client.command("TRUNCATE TABLE alerts")
    none, pause, resume = AdmissionOrder.NONE, AdmissionOrder.PAUSE, AdmissionOrder.RESUME
    states = [
        ("aaa", EpisodeState.OPENED, 1.1, "", pause),
        ("aaa", EpisodeState.ACKNOWLEDGED, 1.1, "zoe", none),
        ("bbb", EpisodeState.OPENED, 1.0, "", none),
        ("aaa", EpisodeState.ONGOING, 1.9, "", pause),
        ("aaa", EpisodeState.ACKNOWLEDGED, 1.9, "ada", resume),
        ("aaa", EpisodeState.ACKNOWLEDGED, 1.9, "zoe", none),
        ("bbb", EpisodeState.RESOLVED, 0.3, "", none),
        ("ccc", EpisodeState.ACKNOWLEDGED, 1.0, "ada", none),  # retention has deleted what it acknowledges
        ("ddd", EpisodeState.OPENED, 1.0, "", pause),
    ]
    alerts = [Alert(run="r", source="trainer", kind="disk_full", message="no episode")]
    for id, state, strength, by, admission in states:
        episode = Episode(
            id=id, monitor="talks", state=state, agent="search", spec="s@1", since_version=4, since_ms=5,
            strength=strength, examples=[f"{id}-{strength}"], by=by, admission=admission,
        )  # fmt: skip
        about = {"source": "watch", "kind": "monitor_talks", "message": f"{state}", "runbook": "reward-hack"}
        alerts.append(Alert(run="r", episode=episode, **about))
    log = StoredLog()
    for number, alert in enumerate(alerts):
        log.add("alerts", "r", alert, id=derived_id("alert", number), time_ms=NOW_MS + number)
    log.write(client, "episodes")
    log.write(client, "episodes again")
    found = client.query(
        "SELECT episode, run, monitor, spec, state, is_open, strength, examples, acknowledged_by, since_version, "
        "message, runbook, admission, resumed_by, pauses FROM episodes ORDER BY episode"
    ).result_rows
    shown = [
        (
            each.episode.id, each.newest.run, each.episode.monitor, each.episode.spec, str(each.episode.state),
            each.is_open, each.episode.strength, each.episode.examples, list(each.acknowledged_by),
            each.episode.since_version, each.newest.message, each.newest.runbook, str(each.episode.admission),
            list(each.resumed_by), each.pauses,
        )
        for each in episodes(alerts)
    ]  # fmt: skip
    assert [tuple(row) for row in found] == shown
    assert [row[0] for row in found] == ["aaa", "bbb", "ddd"]
    assert [row[-1] for row in found] == [False, False, True]
    assert found[0][8] == ["zoe", "ada"]
