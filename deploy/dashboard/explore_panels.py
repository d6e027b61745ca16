"""The panels of the page that lists trajectories by filters."""

from headrace.deploy.dashboard.overview_panels import MAX_LISTED_RUNS
from headrace.deploy.dashboard.panel import OF_RUN, Axis, Form, Panel, Unit
from headrace.deploy.dashboard.selection import MAX_SHOWN
from headrace.deploy.dashboard.slice_panels import CHOICES
from headrace.deploy.dashboard.slices import CUTS, MATCHES
from headrace.streams.clickhouse.slices import TOOL_NAMES
from headrace.streams.clickhouse.views import trajectory_facts

_FILTERS = " AND ".join(
    (
        OF_RUN,
        MATCHES,
        "({task:String} = '' OR task_id = {task:String})",
        "({group:String} = '' OR group_id = {group:String})",
        "startsWith(trajectory_id, {id:String})",
        "({purpose:String} = '' OR purpose = {purpose:String})",
        "({from:String} = '' OR version >= toUInt32OrZero({from:String}))",
        "({to:String} = '' OR version <= toUInt32OrZero({to:String}))",
        "({fate:String} = '' OR fate = {fate:String})",
        "({reason:String} = '' OR reason = {reason:String})",
        "({step:String} = '' OR step = toUInt32OrZero({step:String}))",
        "({least:String} = '' OR normalised >= toFloat64OrZero({least:String}))",
        "({most:String} = '' OR normalised <= toFloat64OrZero({most:String}))",
    )
)

_SORTED = (
    "multiIf({sort:String} = 'reward', toFloat64(reward), {sort:String} = 'advantage', toFloat64(advantage), "
    "{sort:String} = 'version', toFloat64(version), {sort:String} = 'tokens', toFloat64(sampled_tokens), "
    "{sort:String} = 'turns', toFloat64(turns), {sort:String} = 'feedback', toFloat64(signals), toFloat64(ended_ms))"
    " * if({order:String} = 'rising', 1, -1)"
)


def _matching(facts: str) -> str:
    return f"""
            WITH {TOOL_NAMES}
            SELECT trajectory_id, run, agent, task_source, tenant, harness_version, task_id, group_id, version,
                   normalised AS reward, outcome, fate, reason, step, advantage, turns, sampled_tokens, signals,
                   toUnixTimestamp64Milli(ended_at) AS ended_ms
            FROM ({facts}) WHERE {_FILTERS}
        """


_ORDER = f"ORDER BY {_SORTED} NULLS LAST, trajectory_id LIMIT {{limit:UInt32}}"

# Only what filters and order need is joined to all trajectories; everything else to those that are shown.
_NEEDED = trajectory_facts(
    rewarded="({least:String} != '' OR {most:String} != '' OR {sort:String} = 'reward')",
    grouped="({fate:String} != '' OR {sort:String} = 'advantage')",
    trained="({fate:String} != '' OR {step:String} != '')",
    refused="({fate:String} != '' OR {reason:String} != '')",
    judged="({sort:String} = 'feedback')",
)
_CHOSEN = f"""(
            SELECT (groupArray(trajectory_id), any(matching)) FROM (
                SELECT trajectory_id, count() OVER () AS matching FROM ({_matching(_NEEDED)}) {_ORDER}
            )
        )"""
_IS_SHOWN = f"({{limit:UInt32}} > {MAX_SHOWN} OR trajectory_id IN (SELECT arrayJoin({_CHOSEN}.1)))"

EXPLORE_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs with assembled trajectories, the most recently active first.",
        f"""
        SELECT run, count() AS trajectories, toUnixTimestamp64Milli(max(ended_at)) AS last_ms,
               count() OVER () AS all_runs
        FROM trajectories FINAL GROUP BY run ORDER BY last_ms DESC, run LIMIT {MAX_LISTED_RUNS}
        """,
        title="Runs",
        form=Form.DATA,
        values=(
            Axis("run", "Run", Unit.TEXT),
            Axis("trajectories", "Trajectories", Unit.COUNT),
            Axis("last_ms", "Last trajectory", Unit.TIME),
        ),
    ),
    CHOICES,
    Panel(
        "trajectories",
        "Assembled trajectories that match the filters above. The address of the page holds the filters.",
        f"""
        SELECT trajectory_id, run, agent, task_source AS source, tenant, harness_version AS harness, task_id, group_id,
               version, reward, outcome, fate, reason, nullIf(step, 0) AS step, advantage, turns, sampled_tokens,
               signals, ended_ms, if({{limit:UInt32}} > {MAX_SHOWN}, count() OVER (), {_CHOSEN}.2) AS matching
        FROM ({_matching(trajectory_facts(_IS_SHOWN))})
        {_ORDER}
        """,
        title="Trajectories",
        form=Form.TABLE,
        values=(
            Axis("trajectory_id", "Trajectory", Unit.TEXT),
            Axis("ended_ms", "Ended", Unit.TIME),
            Axis("version", "Version", Unit.VERSION),
            Axis("reward", "Reward", Unit.REWARD),
            Axis("advantage", "Advantage", Unit.NUMBER),
            Axis("fate", "Fate", Unit.TEXT),
            Axis("reason", "Reason", Unit.TEXT),
            Axis("step", "Step", Unit.STEP),
            Axis("turns", "Turns", Unit.COUNT),
            Axis("sampled_tokens", "Sampled tokens", Unit.TOKENS),
            Axis("signals", "Feedback", Unit.COUNT),
            Axis("source", "Task source", Unit.TEXT),
            Axis("task_id", "Task", Unit.TEXT),
            Axis("agent", "Agent", Unit.TEXT),
            Axis("tenant", "Tenant", Unit.TEXT),
            Axis("harness", "Harness version", Unit.TEXT),
            Axis("run", "Run", Unit.TEXT),
        ),
        cuts=CUTS,
        wide=True,
        empty="No assembled trajectory matches these filters.",
    ),
)
