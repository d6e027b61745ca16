"""The panels of the overview page: a run from its events to the versions that are served."""

from headrace.deploy.dashboard.activity_panel import ACTIVITY
from headrace.deploy.dashboard.fleet_panels import LAG_OF_GROUPS
from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit, recent
from headrace.deploy.dashboard.slice_panels import (
    CHOICES,
    COMPONENTS,
    FALLS,
    HELD_OUT,
    LENGTH_DISTRIBUTION,
    LENGTHS,
    MAX_VERSIONS,
    REWARD,
    REWARD_DISTRIBUTION,
    SOURCES,
    TOOLS,
)
from headrace.deploy.dashboard.slices import CUTS, IS_IN_FLIGHT, IS_MEMBER

MAX_LISTED_RUNS = 2000
"""Most runs in a list: the most recently active ones; `all_runs` is how many there are."""

ALERT_COLUMNS = (
    Axis("ms", "Time", Unit.TIME),
    Axis("severity", "Severity", Unit.TEXT),
    Axis("part", "Part", Unit.TEXT),
    Axis("kind", "Kind", Unit.TEXT),
    Axis("message", "Problem and remedy", Unit.TEXT),
)
"""The columns of a list of alerts."""

PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "All scored runs and data sets, the most recently active first, whichever run is selected above.",
        f"""
        SELECT run, count() AS trajectories, avg(normalised) AS reward,
               toUnixTimestamp64Milli(max(ended_at)) AS last_ms, count() OVER () AS all_runs
        FROM rewards_latest GROUP BY run ORDER BY last_ms DESC, run LIMIT {MAX_LISTED_RUNS}
        """,
        title="Runs and recorded data",
        form=Form.TABLE,
        values=(
            Axis("run", "Run", Unit.TEXT),
            Axis("trajectories", "Scored", Unit.COUNT),
            Axis("reward", "Mean reward", Unit.REWARD),
            Axis("last_ms", "Last trajectory", Unit.TIME),
        ),
        wide=True,
        empty="No scored trajectories.",
    ),
    Panel(
        "totals",
        "The figures in the tiles at the top.",
        f"""
        SELECT
            (SELECT count() FROM starts FINAL WHERE {_RUN}) AS started,
            (SELECT uniqExact(trajectory_id) FROM step_members WHERE {_RUN}) AS trained,
            (SELECT uniqExact(trajectory_id) FROM rejected WHERE {_RUN}) AS rejected,
            (SELECT uniqExact(id) FROM dead_letters) AS dead_letters,
            (SELECT max(version) FROM weights WHERE {_RUN}) AS published,
            (SELECT uniqExact(version) FROM weights WHERE {_RUN}) AS versions,
            (SELECT max(step) FROM steps WHERE {_RUN}) AS step
        """,
        title="Figures",
        form=Form.FIGURES,
        values=(
            Axis("started", "Trajectories started", Unit.COUNT),
            Axis("trained", "Trained", Unit.COUNT),
            Axis("rejected", "Rejected", Unit.COUNT),
            Axis("dead_letters", "Dead letters, of all runs", Unit.COUNT),
            Axis("published", "Version published", Unit.VERSION),
            Axis("versions", "Versions published", Unit.COUNT),
            Axis("step", "Step", Unit.STEP),
        ),
    ),
    Panel(
        "pace",
        "Events in the last minute, of all runs. Apart from the other figures, because it changes with time alone.",
        f"""
        SELECT uniqExact(id) AS events_a_minute FROM events
        WHERE {recent(1)}
        """,
        window_s=60,
        title="Events",
        form=Form.FIGURES,
        values=(Axis("events_a_minute", "Events in the last minute, of all runs", Unit.COUNT),),
    ),
    CHOICES,
    REWARD,
    FALLS,
    HELD_OUT,
    COMPONENTS,
    SOURCES,
    REWARD_DISTRIBUTION,
    Panel(
        "groups",
        "Groups by fate and by their oldest policy version; null if the version is unknown. Only groups whose rewards "
        "differ carry a gradient.",
        # A group's reason is the greatest by name, so zero_variance_… takes precedence over defects of single members.
        f"""
        SELECT fate, version, count() AS groups
        FROM (
            SELECT 'kept' AS fate, min(oldest_version) AS version FROM training
            WHERE {_RUN} AND {IS_MEMBER} GROUP BY group_id
            UNION ALL
            SELECT max(reason) AS fate, min(policy_version) AS version FROM rejected
            WHERE {_RUN} AND {IS_MEMBER} AND stage = 'group' AND group_id != ''
              AND reason NOT IN ('evaluation', 'frozen_role', 'late_for_group')
              AND group_id NOT IN (SELECT group_id FROM training WHERE {_RUN})
            GROUP BY group_id
        )
        GROUP BY fate, version ORDER BY version DESC NULLS LAST, fate LIMIT {MAX_VERSIONS * 5}
        """,
        title="Groups kept and rejected",
        form=Form.BARS,
        x=Axis("version", "Policy version", Unit.VERSION),
        values=(Axis("groups", "Groups", Unit.COUNT),),
        series="fate",
        cuts=CUTS,
        empty="No groups with a policy version: a group is complete when all attempts at its task have ended.",
    ),
    LENGTHS,
    LENGTH_DISTRIBUTION,
    TOOLS,
    Panel(
        "fates",
        "Every trajectory is trained, rejected for a reason, or still pending. Cut by slices, only assembled ones "
        "count.",
        f"""
        SELECT fate, reason, trajectories FROM (
            SELECT 'trained' AS fate, '' AS reason, uniqExact(trajectory_id) AS trajectories
            FROM step_members WHERE {_RUN} AND {IS_MEMBER}
            UNION ALL
            SELECT 'rejected' AS fate, reason, uniqExact(trajectory_id) FROM rejected
            WHERE {_RUN} AND {IS_MEMBER} GROUP BY reason
            UNION ALL
            SELECT 'pending' AS fate, '' AS reason, count() FROM starts FINAL
            WHERE {_RUN} AND {IS_MEMBER} AND {IS_IN_FLIGHT}
        )
        WHERE trajectories > 0 ORDER BY trajectories DESC, fate, reason
        """,
        title="Trajectories by fate",
        form=Form.TABLE,
        values=(
            Axis("fate", "Fate", Unit.TEXT),
            Axis("reason", "Reason", Unit.TEXT),
            Axis("trajectories", "Trajectories", Unit.COUNT),
        ),
        cuts=CUTS,
        empty="No trajectories.",
    ),
    Panel(
        "staleness",
        "Versions between the policy that sampled a trajectory and the policy that trained on it, by step.",
        f"""
        SELECT step, quantileExact(0.5)(staleness) AS median, max(staleness) AS largest, count() AS trajectories
        FROM (
            SELECT step, toInt64(version) - 1 - assumeNotNull(oldest_version) AS staleness
            FROM (
                SELECT step, version, trajectory_id FROM step_members FINAL WHERE {_RUN} AND {IS_MEMBER}
            ) AS trained
            ANY INNER JOIN (
                SELECT trajectory_id, oldest_version FROM training WHERE oldest_version IS NOT NULL
            ) AS sampled
            USING (trajectory_id)
        )
        GROUP BY step ORDER BY step DESC LIMIT {MAX_VERSIONS}
        """,
        title="Staleness",
        form=Form.LINE,
        x=Axis("step", "Step", Unit.STEP),
        values=(Axis("largest", "largest", Unit.COUNT), Axis("median", "median", Unit.COUNT)),
        n="trajectories",
        cuts=CUTS,
        empty="No steps: the trainer makes a step when it has received enough groups with a gradient.",
    ),
    Panel(
        "versions",
        "Policy version over time: published by the trainer, and verified and served by each engine.",
        f"""
        SELECT series, version, ms, swap_s, canary_max_error FROM (
            SELECT 'published' AS series, version, toUnixTimestamp64Milli(min(time)) AS ms, NULL AS swap_s,
                   NULL AS canary_max_error
            FROM weights WHERE {_RUN} GROUP BY version ORDER BY version DESC LIMIT {MAX_VERSIONS}
            UNION ALL
            SELECT concat('served by ', toString(engine)) AS series, version, toUnixTimestamp64Milli(min(time)) AS ms,
                   max(swap_s) AS swap_s, max(canary_max_error) AS canary_max_error
            FROM applied WHERE {_RUN} GROUP BY engine, version ORDER BY version DESC, engine LIMIT {MAX_VERSIONS}
        ) ORDER BY series, version DESC
        """,
        title="Versions published and served",
        form=Form.STEPS,
        x=Axis("ms", "Time", Unit.TIME),
        values=(Axis("version", "Version", Unit.VERSION),),
        series="series",
        empty="No weights: the trainer publishes version 0 when it starts (`headrace up`).",
    ),
    Panel(
        "lag",
        "How far each consumer group was behind in the last ten minutes: the age of the next record that it had not "
        "processed. An idle group is 0 s behind; markers of transactions do not count. Without trainers whose run is "
        "finished.",
        LAG_OF_GROUPS,
        window_s=600,
        title="Lag",
        form=Form.LINE,
        x=Axis("ms", "Time", Unit.TIME),
        values=(Axis("seconds", "Behind", Unit.SECONDS),),
        series="consumer_group",
        empty="No lag was measured in the last ten minutes: the sink measures it while it runs (`headrace status`).",
    ),
    Panel(
        "alerts",
        "Problems that need attention, newest first; those of a monitor lead to /watch.",
        f"""
        SELECT toUnixTimestamp64Milli(time) AS ms, part, kind, severity, message, run, episode
        FROM alerts FINAL WHERE {_RUN} OR run = '' ORDER BY time DESC, id LIMIT 20
        """,
        title="Alerts",
        form=Form.TABLE,
        values=ALERT_COLUMNS,
        empty="No alerts.",
    ),
    ACTIVITY,
)
