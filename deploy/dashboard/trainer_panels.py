"""The panels of the trainer's page as SQL: the steps of a run with all their metrics, rejections and alerts."""

from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import STARTS, Panel

MAX_POINTS = 600
"""Most points of a chart: of a longer run only every second, third … step and the newest step are shown."""

_EVERY = f"greatest(1, intDiv((SELECT max(step) FROM steps WHERE {_RUN}), {MAX_POINTS}))"

TRAINER_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs with training steps, the most recently active first.",
        """
        SELECT run, max(step) AS steps, toUnixTimestamp64Milli(max(time)) AS last_ms
        FROM steps GROUP BY run ORDER BY last_ms DESC, run LIMIT 100
        """,
    ),
    Panel(
        "now",
        "The run's current state. groups_waiting: groups that were formed, but neither trained nor rejected yet. "
        "groups_in_flight: those that were started and have trajectories without a fate. groups_granted: "
        "how many groups the trainer's budget allows in flight, null if it published no budget.",
        f"""
        SELECT
            (SELECT max(step) FROM steps WHERE {_RUN}) AS step,
            (SELECT max(version) FROM weights WHERE {_RUN}) AS published,
            (SELECT toUnixTimestamp64Milli(max(time)) FROM steps WHERE {_RUN}) AS last_ms,
            (SELECT uniqExact(id) FROM alerts WHERE {_RUN} AND kind = 'step_skipped') AS skipped,
            (SELECT uniqExact(group_id) FROM training WHERE {_RUN}
             AND trajectory_id NOT IN (SELECT trajectory_id FROM step_members WHERE {_RUN})
             AND trajectory_id NOT IN (SELECT trajectory_id FROM rejected WHERE {_RUN})) AS groups_waiting,
            (SELECT uniqExact(group_id) FROM {STARTS}
             WHERE group_id != '' AND {_RUN}
             AND purpose IN ('', 'train')
             AND trajectory_id NOT IN (SELECT trajectory_id FROM step_members WHERE {_RUN})
             AND trajectory_id NOT IN (SELECT trajectory_id FROM rejected WHERE {_RUN})) AS groups_in_flight,
            (SELECT if(count() = 0, NULL, argMax(max_groups, (version, time))) FROM budget WHERE {_RUN})
            AS groups_granted,
            (SELECT argMax(groups_per_step, (version, time)) FROM budget WHERE {_RUN}) AS groups_per_step
        """,
    ),
    Panel(
        "steps",
        "Each step with its metrics, under the names of METRICS.md.",
        f"""
        SELECT step, toUnixTimestamp64Milli(time) AS ms, groups, trajectories, metrics
        FROM (SELECT step, time, groups, trajectories, metrics FROM steps FINAL WHERE {_RUN})
        WHERE step % {_EVERY} = 0 OR step = (SELECT max(step) FROM steps WHERE {_RUN})
        ORDER BY step, time LIMIT 1 BY step
        """,
    ),
    Panel(
        "rejected",
        "Trajectories that the trainer rejected, by reason.",
        f"""
        SELECT reason, uniqExact(trajectory_id) AS trajectories FROM rejected FINAL
        WHERE {_RUN} AND stage = 'admission' GROUP BY reason ORDER BY trajectories DESC, reason
        """,
    ),
    Panel(
        "alerts",
        "The trainer's alerts, skipped steps included, newest first.",
        f"""
        SELECT toUnixTimestamp64Milli(time) AS ms, part, kind, severity, message
        FROM alerts FINAL WHERE {_RUN} AND part = 'trainer' ORDER BY time DESC, id LIMIT 20
        """,
    ),
)
