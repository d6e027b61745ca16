"""The panels of the overview page as SQL: a run from its events to the versions that are served."""

from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import STARTS, Panel

MAX_VERSIONS = 2000
"""Number of policy versions or steps in a chart: the newest ones."""

PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs and recorded data sets, the most recently active first.",
        """
        SELECT run, uniqExact(trajectory_id) AS trajectories, avg(normalised) AS reward,
               toUnixTimestamp64Milli(max(ended_at)) AS last_ms
        FROM rewards_latest GROUP BY run ORDER BY last_ms DESC, run LIMIT 100
        """,
    ),
    Panel(
        "totals",
        "The figures in the tiles at the top.",
        f"""
        SELECT
            (SELECT uniqExact(trajectory_id) FROM {STARTS} WHERE {_RUN}) AS started,
            (SELECT uniqExact(trajectory_id) FROM step_members WHERE {_RUN}) AS trained,
            (SELECT uniqExact(trajectory_id) FROM rejected WHERE {_RUN}) AS rejected,
            (SELECT uniqExact(id) FROM events WHERE time > now64(3) - INTERVAL 1 MINUTE) AS events_a_minute,
            (SELECT uniqExact(id) FROM dead_letters) AS dead_letters,
            (SELECT max(version) FROM weights WHERE {_RUN}) AS published,
            (SELECT uniqExact(version) FROM weights WHERE {_RUN}) AS versions,
            (SELECT max(step) FROM steps WHERE {_RUN}) AS step
        """,
        window_s=60,
    ),
    Panel(
        "reward",
        "Mean reward by the oldest policy version of a trajectory: training rollouts, and evaluations by label.",
        f"""
        SELECT series, version, avg(normalised) AS reward, count() AS trajectories
        FROM (
            SELECT oldest_version AS version, normalised,
                   multiIf(purpose = 'train', 'train', evaluation = '', 'evaluate', evaluation) AS series
            FROM (
                SELECT trajectory_id, purpose, normalised, oldest_version FROM rewards_latest
                WHERE {_RUN} AND normalised IS NOT NULL AND oldest_version IS NOT NULL
            ) AS scored
            LEFT ANY JOIN (SELECT trajectory_id, evaluation FROM trajectories WHERE evaluation != '') AS labelled
            USING (trajectory_id)
        )
        GROUP BY series, version ORDER BY version DESC, series LIMIT {MAX_VERSIONS}
        """,
    ),
    Panel(
        "components",
        "Contribution of each component to the normalised reward of training rollouts: weight x value / maximum.",
        f"""
        SELECT component, version, avg(value * weight / maximum) AS share
        FROM (
            SELECT oldest_version AS version, assumeNotNull(maximum) AS maximum,
                   arrayJoin(mapKeys(components)) AS component,
                   components[component] AS value, weights[component] AS weight
            FROM rewards_latest
            WHERE {_RUN} AND purpose = 'train' AND maximum > 0 AND total IS NOT NULL AND oldest_version IS NOT NULL
        )
        GROUP BY component, version ORDER BY version DESC, component LIMIT {MAX_VERSIONS * 5}
        """,
    ),
    Panel(
        "sources",
        "Value of each component, before its weight, by the source that a task names; training rollouts.",
        f"""
        SELECT concat(source, ': ', component) AS series, version, avg(value) AS value
        FROM (
            SELECT trajectory_id, oldest_version AS version, arrayJoin(mapKeys(components)) AS component,
                   components[component] AS value
            FROM rewards_latest
            WHERE {_RUN} AND purpose = 'train' AND total IS NOT NULL AND oldest_version IS NOT NULL
        ) AS scored
        LEFT ANY JOIN (
            SELECT trajectory_id, task_source AS source FROM trajectories
        ) AS sourced
        USING (trajectory_id)
        WHERE source != ''
        GROUP BY series, version ORDER BY version DESC, series LIMIT {MAX_VERSIONS * 5}
        """,
    ),
    Panel(
        "groups",
        "Groups by fate and by their oldest policy version; null if the version is unknown.",
        # A group's reason is the greatest by name, so zero_variance_… takes precedence over defects of single members.
        f"""
        SELECT fate, version, count() AS groups
        FROM (
            SELECT 'kept' AS fate, min(oldest_version) AS version FROM training FINAL WHERE {_RUN} GROUP BY group_id
            UNION ALL
            SELECT max(reason) AS fate, min(policy_version) AS version FROM rejected FINAL
            WHERE {_RUN} AND stage = 'group' AND group_id != ''
              AND reason NOT IN ('evaluation', 'frozen_role', 'late_for_group')
              AND group_id NOT IN (SELECT group_id FROM training)
            GROUP BY group_id
        )
        GROUP BY fate, version ORDER BY version DESC NULLS LAST, fate LIMIT {MAX_VERSIONS * 5}
        """,
    ),
    Panel(
        "fates",
        "Trajectories by fate; those that are neither trained nor rejected are pending.",
        f"""
        SELECT fate, reason, trajectories FROM (
            SELECT 'trained' AS fate, '' AS reason, uniqExact(trajectory_id) AS trajectories
            FROM step_members WHERE {_RUN}
            UNION ALL
            SELECT 'rejected' AS fate, reason, uniqExact(trajectory_id) FROM rejected WHERE {_RUN} GROUP BY reason
            UNION ALL
            SELECT 'pending' AS fate, '' AS reason, uniqExact(trajectory_id) FROM {STARTS}
            WHERE {_RUN}
              AND trajectory_id NOT IN (SELECT trajectory_id FROM step_members)
              AND trajectory_id NOT IN (SELECT trajectory_id FROM rejected)
        )
        WHERE trajectories > 0 ORDER BY trajectories DESC, fate, reason
        """,
    ),
    Panel(
        "staleness",
        "Versions between the policy that sampled a trajectory and the policy that trained on it, by step.",
        f"""
        SELECT step, quantileExact(0.5)(staleness) AS median, max(staleness) AS largest
        FROM (
            SELECT step, toInt64(version) - 1 - assumeNotNull(oldest_version) AS staleness
            FROM (SELECT step, version, trajectory_id FROM step_members FINAL WHERE {_RUN}) AS trained
            ANY INNER JOIN (
                SELECT trajectory_id, oldest_version FROM training WHERE oldest_version IS NOT NULL
            ) AS sampled
            USING (trajectory_id)
        )
        GROUP BY step ORDER BY step DESC LIMIT {MAX_VERSIONS}
        """,
    ),
    Panel(
        "published",
        "Policy versions by time of publication.",
        f"""
        SELECT version, toUnixTimestamp64Milli(min(time)) AS ms FROM weights WHERE {_RUN}
        GROUP BY version ORDER BY version DESC LIMIT {MAX_VERSIONS}
        """,
    ),
    Panel(
        "applied",
        "Policy versions by engine and by the time from which it served them.",
        f"""
        SELECT engine, version, toUnixTimestamp64Milli(min(time)) AS ms, max(swap_s) AS swap_s,
               max(canary_max_error) AS canary_max_error
        FROM applied WHERE {_RUN} GROUP BY engine, version ORDER BY version DESC, engine LIMIT {MAX_VERSIONS}
        """,
    ),
    Panel(
        "lag",
        "Lag of each consumer group in records, in the last ten minutes.",
        """
        SELECT toUnixTimestamp64Milli(time) AS ms, consumer_group, sum(records) AS records
        FROM lag FINAL WHERE time > now64(3) - INTERVAL 10 MINUTE
        GROUP BY time, consumer_group ORDER BY time, consumer_group LIMIT 20000
        """,
        window_s=600,
    ),
    Panel(
        "alerts",
        "Alerts, newest first.",
        f"""
        SELECT toUnixTimestamp64Milli(time) AS ms, part, kind, severity, message
        FROM alerts FINAL WHERE {_RUN} OR run = '' ORDER BY time DESC, id LIMIT 20
        """,
    ),
)
