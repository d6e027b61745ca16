"""The panel of what a run is doing, from which a page tells its state: finished, paused, starving, busy or stuck.

The query returns facts and no state, because a state changes with time alone while no row does; ``static/state.js``
decides, with the browser's clock.
"""

from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import Form, Panel

OUTAGES = ("checkpoint_not_written", "object_store_unavailable")
"""Kinds of alerts of a trainer that does nothing else until a disk or store is available again."""

RECENT_STEPS = 10
"""Steps whose seconds tell what a trainer spends its time on."""

_OUTAGES = ", ".join(f"'{kind}'" for kind in OUTAGES)
# The last one in the log: a step of a clock that was ahead is not the newest until that time.
_LAST_STEP = f"(SELECT argMax(time, (offset, time)) FROM steps WHERE {_RUN})"
_RECENT = f"(SELECT time, metrics FROM steps FINAL WHERE {_RUN} ORDER BY step DESC LIMIT {RECENT_STEPS})"

ACTIVITY = Panel(
    "activity",
    "What the run is doing: its newest step and trajectory, where its steps' time went, its budget, groups that are "
    "ready, the outage that its trainer waits for.",
    f"""
    SELECT
        (SELECT max(step) FROM steps WHERE {_RUN}) AS step,
        toUnixTimestamp64Milli({_LAST_STEP}) AS last_step_ms,
        (SELECT if(count() < 2, NULL, dateDiff('millisecond', min(time), max(time)) / 1000 / (count() - 1))
         FROM {_RECENT}) AS step_s,
        (SELECT if(sum(metrics['seconds_step']) > 0, sum(metrics['seconds_wait']) / sum(metrics['seconds_step']), NULL)
         FROM {_RECENT}) AS wait_share,
        (SELECT if(count() = 0, NULL, argMax(max_groups, (version, time))) FROM budget WHERE {_RUN}) AS groups_granted,
        (SELECT argMax(groups_per_step, (version, time)) FROM budget WHERE {_RUN}) AS groups_per_step,
        (SELECT uniqExact(group_id) FROM training WHERE {_RUN} AND time > {_LAST_STEP}) AS groups_ready,
        (SELECT toUnixTimestamp64Milli(max(time)) FROM trajectories WHERE {_RUN}) AS last_trajectory_ms,
        (SELECT argMax(message, time) FROM alerts
         WHERE {_RUN} AND kind IN ({_OUTAGES}) AND time > {_LAST_STEP}) AS outage
    """,
    title="Activity",
    form=Form.DATA,
)
