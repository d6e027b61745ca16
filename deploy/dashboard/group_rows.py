"""What ClickHouse has about a group: its attempts with rewards, advantages and fates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.deploy.dashboard.row_dicts import RowDict, rows
from headrace.deploy.dashboard.trajectory_rows import MAX_ROWS
from headrace.schemas.events import Purpose, Role

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_STEPS = """
    SELECT trajectory_id, min(step) AS step, argMin(version, step_members.step) AS version FROM step_members
    WHERE run = {run:String} AND trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id
"""
_REJECTIONS = """
    SELECT trajectory_id, argMax(stage, (logged_at, offset)) AS stage, argMax(reason, (logged_at, offset)) AS reason
    FROM rejected WHERE trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id
"""
_LATEST_REWARDS = """
    SELECT trajectory_id, spec, total, maximum, normalised, components, weights, turns, sampled_tokens, status, agent,
           purpose, task_id, group_id, oldest_version
    FROM (
        SELECT * FROM rewards WHERE trajectory_id IN {ids:Array(String)}
        ORDER BY trajectory_id, spec, revision DESC, offset DESC LIMIT 1 BY trajectory_id, spec
    ) ORDER BY trajectory_id, offset DESC LIMIT 1 BY trajectory_id
"""
_MEMBERS = f"""
    SELECT trajectory_id, reward, advantage, baseline, baseline_value, scored, reward_std, spec, task_id, run
    FROM training FINAL WHERE group_id = {{group:String}} ORDER BY reward DESC, trajectory_id LIMIT {MAX_ROWS}
"""
_OF_GROUP = f"""
    SELECT trajectory_id, agent, role, purpose, status, outcome, turns, sampled_tokens, tools, task_id, task_source,
           run, oldest_version, newest_version, toUnixTimestamp64Milli(started_at) AS started_ms
    FROM trajectories WHERE group_id = {{group:String}} ORDER BY trajectory_id LIMIT 1 BY trajectory_id LIMIT {MAX_ROWS}
"""


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Everything that the tables have about a group."""

    group_id: str
    """The group; empty for a trajectory without one."""
    run: str
    """Its run."""
    members: dict[str, RowDict]
    """Rows of `training` by trajectory: those that carry a gradient."""
    labels: dict[str, RowDict]
    """Rows of `trajectories` by trajectory: all attempts."""
    rewards: dict[str, RowDict]
    """Current reward by trajectory."""
    fates: dict[str, RowDict]
    """Fate by trajectory: ``fate``, and with it ``step`` and ``version``, or ``stage`` and ``reason``."""

    @property
    def ids(self) -> list[str]:
        """Its trajectories, the best reward first."""
        known = dict.fromkeys([*self.members, *self.labels])

        def order(id: str) -> tuple[bool, float, str]:
            reward = self.reward_of(id)
            return reward is None, -(reward or 0.0), id

        return sorted(known, key=order)

    def reward_of(self, id: str) -> float | None:
        """Returns the reward of a trajectory; ``None`` if it has none."""
        if id in self.members:
            return float(self.members[id]["reward"])
        total = self.rewards.get(id, {}).get("total")
        return None if total is None else float(total)


def read_group(
    client: "Client", run: str, group_id: str, trajectory_id: str = "", labels: RowDict | None = None
) -> GroupRows:
    """Query everything about a group and about the trajectory ``trajectory_id``, which may be in none (``group_id`` is
    empty then); ``run`` may be empty if the group tells it. Raises the client's ``ClickHouseError``.
    """
    members = {each["trajectory_id"]: each for each in rows(client, _MEMBERS, group=group_id)} if group_id else {}
    known = {each["trajectory_id"]: each for each in rows(client, _OF_GROUP, group=group_id)} if group_id else {}
    if trajectory_id:
        known.setdefault(trajectory_id, labels or {})
    every = list(dict.fromkeys([*members, *known]))
    run = run or next((each["run"] for each in [*known.values(), *members.values()] if each), "")
    about = {id: known.get(id, {}) for id in every}
    found = fates(client, run, about, set(members))
    return GroupRows(group_id, run, members, known, latest_rewards(client, every), found)


def latest_rewards(client: "Client", ids: Sequence[str]) -> dict[str, RowDict]:
    """Returns the current reward of each trajectory that has one."""
    found = rows(client, _LATEST_REWARDS, ids=list(ids)) if ids else []
    return {each["trajectory_id"]: each for each in found}


def fates(client: "Client", run: str, known: Mapping[str, RowDict], grouped: set[str]) -> dict[str, RowDict]:
    """Returns what became of the trajectories ``known`` of ``run``, with their labels, of which ``grouped`` are in a
    training group: the fates of the view `trajectory_facts`.
    """
    ids = list(known)
    if not ids:
        return {}
    steps = {each["trajectory_id"]: each for each in rows(client, _STEPS, run=run, ids=ids)}
    rejected = {each["trajectory_id"]: each for each in rows(client, _REJECTIONS, ids=ids)}
    return {id: fate_of(known[id], steps.get(id), rejected.get(id), is_grouped=id in grouped) for id in ids}


def fate_of(labels: RowDict, step: RowDict | None, rejection: RowDict | None, *, is_grouped: bool) -> RowDict:
    """Returns the fate of a trajectory by its rows."""
    if step is not None:
        return {"fate": "trained", "step": step["step"], "version": step["version"]}
    if rejection is not None:
        return {"fate": "rejected", "stage": rejection["stage"], "reason": rejection["reason"]}
    if is_grouped:
        return {"fate": "waiting"}
    if labels.get("role") == Role.FROZEN:
        return {"fate": "frozen"}
    return {"fate": "evaluation" if labels.get("purpose") == Purpose.EVALUATE else "pending"}
