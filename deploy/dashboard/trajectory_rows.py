"""What ClickHouse has about one trajectory, read by keys: labels, events, rewards, feedback and neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.deploy.dashboard.row_dicts import RowDict, rows
from headrace.deploy.transcript.refolded import StoredEvent

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

MAX_EVENTS = 50_000
"""Most events of a trajectory that are read."""
MAX_EVENT_BYTES = 64 * 1024**2
"""Most bytes of payloads that are read."""
MAX_ROWS = 200
"""Most rows of anything else: revisions of rewards, feedback, sub-agents, members of a group."""

_LABELS = """
    SELECT trajectory_id, run, task_id, group_id, agent, harness_version, role, purpose, evaluation,
           parent_trajectory_id, tenant, task_source, difficulty, channel, status, outcome, answer, turns,
           segments, tokens, sampled_tokens, pruned, summaries, subagents_assigned, subagents_finished, defects,
           missing, oldest_version, newest_version, toUnixTimestamp64Milli(started_at) AS started_ms,
           toUnixTimestamp64Milli(ended_at) AS ended_ms
    FROM trajectories FINAL WHERE trajectory_id = {id:String} LIMIT 1
"""
_SIZE = """
    SELECT count() AS events, sum(length(payload)) AS bytes FROM events WHERE trajectory_id = {id:String}
"""
# LIMIT BY instead of FINAL: rows of one record are equal, and of two records with one number the first counts.
_EVENTS = f"""
    SELECT type, seq, toUnixTimestamp64Milli(time), partition, offset, payload FROM events
    WHERE trajectory_id = {{id:String}} ORDER BY seq, offset LIMIT 1 BY seq LIMIT {MAX_EVENTS}
"""
_REWARDS = f"""
    SELECT spec, revision, offset, total, maximum, normalised, unscored, components, weights, details,
           toUnixTimestamp64Milli(time) AS ms
    FROM rewards FINAL WHERE trajectory_id = {{id:String}} ORDER BY offset DESC LIMIT {MAX_ROWS}
"""
_FEEDBACK = f"""
    SELECT signal, value, delay_s, comment, source, toUnixTimestamp64Milli(time) AS ms
    FROM feedback FINAL WHERE trajectory_id = {{id:String}} ORDER BY time, id LIMIT {MAX_ROWS}
"""
_CHILDREN = f"""
    SELECT trajectory_id, agent, role, status, turns, toUnixTimestamp64Milli(started_at) AS started_ms
    FROM trajectories WHERE parent_trajectory_id = {{id:String}} ORDER BY started_at, trajectory_id
    LIMIT 1 BY trajectory_id LIMIT {MAX_ROWS}
"""
_ALERTS = """
    SELECT episode, monitor, spec, state, is_open FROM episodes WHERE has(examples, {id:String})
    ORDER BY changed_at DESC LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class TrajectoryRows:
    """Everything that the tables have about a trajectory."""

    labels: RowDict | None
    """Its row of `trajectories`; ``None`` if it is not assembled yet, or has expired."""
    events: list[StoredEvent]
    """Its events, in order; empty if they have expired, or are too large."""
    too_large: str
    """Why its events were not read; empty if they were."""
    rewards: list[RowDict]
    """Its rewards, the newest first."""
    feedback: list[RowDict]
    """Its feedback, in order."""
    children: list[RowDict]
    """Trajectories of its sub-agents, and those that continue it."""
    alerts: list[RowDict]
    """Episodes of monitors of which it is an example."""

    @property
    def is_known(self) -> bool:
        """Whether any table has something about it."""
        return bool(self.labels or self.events or self.rewards or self.too_large)


def read_trajectory(client: "Client", trajectory_id: str) -> TrajectoryRows:
    """Query everything about ``trajectory_id`` but its group. Raises the client's ``ClickHouseError``."""
    labels = rows(client, _LABELS, id=trajectory_id)
    events, too_large = read_events(client, trajectory_id)
    rewards, feedback, children, alerts = (
        rows(client, sql, id=trajectory_id) for sql in (_REWARDS, _FEEDBACK, _CHILDREN, _ALERTS)
    )
    return TrajectoryRows(labels[0] if labels else None, events, too_large, rewards, feedback, children, alerts)


def read_events(
    client: "Client", trajectory_id: str, most_bytes: int = MAX_EVENT_BYTES
) -> tuple[list[StoredEvent], str]:
    """Returns the events of a trajectory, or why they are too large to be read."""
    (size,) = rows(client, _SIZE, id=trajectory_id)
    if size["bytes"] > most_bytes or size["events"] > 2 * MAX_EVENTS:
        return [], (
            f"Its {size['events']:,} events have {size['bytes'] / 1024**2:,.0f} MiB, more than this page reads: "
            f"`headrace show {trajectory_id}` prints them."
        )
    found = client.query(_EVENTS, parameters={"id": trajectory_id}).result_rows
    return [
        StoredEvent(type, seq, ms, (partition, offset), _bytes(payload))
        for type, seq, ms, partition, offset, payload in found
    ], ""


def _bytes(payload: str | bytes) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


def current_reward(rewards: Sequence[RowDict]) -> RowDict | None:
    """Returns the reward that holds, as the view `rewards_latest`: the last revision by the spec that scored last."""
    newest: dict[str, RowDict] = {}
    for each in rewards:
        known = newest.get(each["spec"])
        if known is None or (each["revision"], each["offset"]) > (known["revision"], known["offset"]):
            newest[each["spec"]] = each
    return max(newest.values(), key=lambda each: each["offset"], default=None)
