"""What ClickHouse has about a policy version: the step that made it, trajectories that it sampled, and those on which
it was trained.
"""

from typing import TYPE_CHECKING, Any

from headrace.deploy.dashboard.group_rows import fates, latest_rewards
from headrace.deploy.dashboard.panel import Axis, Form, Panel
from headrace.deploy.dashboard.row_dicts import RowDict, rows
from headrace.deploy.dashboard.trainer_panels import DISTANCE, LEARNING, METRIC_CHARTS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

MAX_LISTED = 500
"""Most trajectories in each list, those with the largest rewards first."""


def _label(panel: Panel, axis: Axis, metric: str) -> str:
    if len(panel.values) == 1:
        return panel.heading
    if axis.label == metric.replace("_", " "):
        return axis.label.capitalize().replace("Kl ", "KL ")
    return f"{panel.heading}: {axis.label}"


MEASURES = {
    name: _label(panel, axis, name)
    for panel in METRIC_CHARTS
    if panel.section in (LEARNING, DISTANCE) and panel.form is Form.LINE
    for axis in panel.values
    for name in (axis.column.removeprefix("metrics."),)
}
"""Metrics of the step that made a version, with their labels: those of the trainer's page about learning."""

# An empty run means all runs, as in the panels.
_OF_RUN = "({run:String} = '' OR run = {run:String})"
_SAMPLED = f"""
    SELECT trajectory_id, run, agent, task_id, group_id, purpose, role, spec, total, maximum, normalised, turns,
           sampled_tokens, status, count() OVER () AS of
    FROM (
        SELECT * FROM (
            SELECT * FROM rewards WHERE {_OF_RUN} AND oldest_version = {{version:UInt32}}
            ORDER BY trajectory_id, spec, revision DESC, offset DESC LIMIT 1 BY trajectory_id, spec
        ) ORDER BY trajectory_id, offset DESC LIMIT 1 BY trajectory_id
    ) ORDER BY normalised DESC NULLS LAST, trajectory_id LIMIT {MAX_LISTED}
"""
_TRAINED = f"""
    SELECT trajectory_id, group_id, run, min(member.step) AS step, count() OVER () AS of
    FROM step_members AS member WHERE {_OF_RUN} AND version = {{version:UInt32}}
    GROUP BY trajectory_id, group_id, run ORDER BY group_id, trajectory_id LIMIT {MAX_LISTED}
"""
_STEPS = """
    SELECT version, step, toUnixTimestamp64Milli(time) AS ms, groups, trajectories, metrics FROM steps
    WHERE run = {run:String} AND version <= {version:UInt32} AND version + 1 >= {version:UInt32}
    ORDER BY version DESC, time DESC LIMIT 1 BY version
"""
_SOURCES = """
    SELECT trajectory_id, task_source, evaluation FROM trajectories WHERE trajectory_id IN {ids:Array(String)}
    ORDER BY trajectory_id LIMIT 1 BY trajectory_id
"""


def read_version(client: "Client", run: str, version: int) -> dict[str, Any]:
    """Query the trajectories of ``version`` of ``run``, and its step; of all runs, without the step, if that is empty.
    Raises the client's ``ClickHouseError``.
    """
    sampled = rows(client, _SAMPLED, run=run, version=version)
    trained = rows(client, _TRAINED, run=run, version=version)
    ids = list(dict.fromkeys(each["trajectory_id"] for each in (*sampled, *trained)))
    labels = {each["trajectory_id"]: each for each in (rows(client, _SOURCES, ids=ids) if ids else [])}
    rewards = latest_rewards(client, [each["trajectory_id"] for each in trained])
    found: dict[str, RowDict] = {}
    for name in sorted({each["run"] for each in sampled}):
        found |= fates(client, name, {each["trajectory_id"]: each for each in sampled if each["run"] == name}, set())
    return {
        "run": run,
        "version": version,
        "step": _step({each["version"]: each for each in rows(client, _STEPS, run=run, version=version)}, version),
        "sampled": [_row(each, labels, found.get(each["trajectory_id"], {})) for each in sampled],
        "sampled_of": sampled[0]["of"] if sampled else 0,
        "trained": [
            _row(rewards.get(each["trajectory_id"], {}) | each, labels, {"fate": "trained", "step": each["step"]})
            for each in trained
        ],
        "trained_of": trained[0]["of"] if trained else 0,
    }


def _step(steps: dict[int, RowDict], version: int) -> RowDict | None:
    """Returns the step that made ``version``, with its measures beside those of the step before, if there is one."""
    if (made := steps.get(version)) is None:
        return None
    now, before = made["metrics"], steps.get(version - 1, {}).get("metrics", {})
    return {
        **{name: made[name] for name in ("step", "ms", "groups", "trajectories")},
        "measures": [
            {"label": label, "value": now[name], "before": before.get(name)}
            for name, label in MEASURES.items()
            if name in now
        ],
    }


def _row(each: RowDict, labels: dict[str, RowDict], fate: RowDict) -> RowDict:
    about = labels.get(each["trajectory_id"], {})
    return {
        "id": each["trajectory_id"],
        "agent": each.get("agent", ""),
        "task_id": each.get("task_id", ""),
        "task_source": about.get("task_source", ""),
        "purpose": about.get("evaluation") or each.get("purpose", ""),
        "group_id": each.get("group_id", ""),
        "reward": each.get("total"),
        "maximum": each.get("maximum"),
        "turns": each.get("turns"),
        "tokens": each.get("sampled_tokens"),
        "status": each.get("status", ""),
        "version": each.get("oldest_version"),
        **fate,
    }
