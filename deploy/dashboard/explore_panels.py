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
        "({fate:String} = '' OR fate = {fate:String}"
        " OR ({fate:String} = 'undecided' AND fate NOT IN ('trained', 'rejected')))",
        "({reason:String} = '' OR reason = {reason:String})",
        "({step:String} = '' OR step = toUInt32OrZero({step:String}))",
        "({tokens_from:String} = '' OR sampled_tokens >= toUInt32OrZero({tokens_from:String}))",
        "({tokens_to:String} = '' OR sampled_tokens <= toUInt32OrZero({tokens_to:String}))",
        "({least:String} = '' OR normalised >= toFloat64OrZero({least:String}))",
        "({most:String} = '' OR normalised <= toFloat64OrZero({most:String}))",
    )
)

_SORTED = "toFloat64(ended_at)"
for _name, _column in (
    ("reward", "normalised"), ("advantage", "advantage"), ("version", "version"), ("tokens", "sampled_tokens"),
    ("turns", "turns"), ("feedback", "signals"),
):  # fmt: skip
    # Not multiIf, for which all these columns would be read.
    _SORTED = f"if({{sort:String}} = '{_name}', toFloat64({_column}), {_SORTED})"
_ORDER = f"ORDER BY {_SORTED} * if({{order:String}} = 'rising', 1, -1) NULLS LAST, trajectory_id LIMIT {{limit:UInt32}}"

# Which trajectories are shown is found first, with what filters and order need; everything else is joined to these
# only. Usually they need columns of `trajectories` alone, which then are read without any join: joins with nothing take
# as long as reading the rows.
_IS_JOINED = (
    "(concat({fate:String}, {reason:String}, {step:String}, {least:String}, {most:String}) != '' "
    "OR {sort:String} IN ('reward', 'advantage', 'feedback'))"
)
_OWN = (
    "trajectory_id, run, agent, task_source, tenant, harness_version, channel, task_id, group_id, purpose, turns, "
    f"sampled_tokens, ended_at, {TOOL_NAMES}"
)
_JOINED = trajectory_facts(
    _IS_JOINED,
    rewarded="({least:String} != '' OR {most:String} != '' OR {sort:String} = 'reward')",
    grouped="({fate:String} != '' OR {sort:String} = 'advantage')",
    trained="({fate:String} != '' OR {step:String} != '')",
    refused="({fate:String} != '' OR {reason:String} != '')",
    judged="({sort:String} = 'feedback')",
)
_CHOSEN = f"""(
            SELECT (groupArray(trajectory_id), any(matching)) FROM (
                SELECT trajectory_id, count() OVER () AS matching FROM (
                    SELECT {_OWN}, oldest_version AS version, CAST(NULL, 'Nullable(Float64)') AS normalised,
                           '' AS fate, '' AS reason, 0 AS step, CAST(NULL, 'Nullable(Float64)') AS advantage,
                           0 AS signals
                    FROM trajectories FINAL WHERE NOT {_IS_JOINED}
                    UNION ALL
                    SELECT {_OWN}, version, normalised, fate, reason, step, advantage, signals FROM ({_JOINED})
                ) WHERE {_FILTERS} {_ORDER}
            )
        )"""
_IS_SHOWN = f"({{limit:UInt32}} > {MAX_SHOWN} OR trajectory_id IN (SELECT arrayJoin(chosen.1)))"

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
        WITH {_CHOSEN} AS chosen, {TOOL_NAMES}
        SELECT trajectory_id, run, agent, task_source AS source, tenant, harness_version AS harness, channel,
               task_id, group_id, version, normalised AS reward, outcome, fate, reason, nullIf(step, 0) AS step,
               advantage, turns, sampled_tokens, signals, toUnixTimestamp64Milli(ended_at) AS ended_ms,
               if({{limit:UInt32}} > {MAX_SHOWN}, count() OVER (), chosen.2) AS matching
        FROM ({trajectory_facts(_IS_SHOWN)})
        WHERE {_FILTERS}
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
            Axis("channel", "Channel", Unit.TEXT),
            Axis("run", "Run", Unit.TEXT),
        ),
        cuts=CUTS,
        wide=True,
        empty="No assembled trajectory matches these filters.",
    ),
)
