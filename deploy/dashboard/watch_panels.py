"""The panels of the page of the monitors' alerts as SQL. The page draws them by its own script, Grafana by their
forms."""

from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit
from headrace.streams.watch.monitors import LOG_MONITORS

MAX_EPISODES = 200
"""Most episodes that are shown: open ones first, critical ones before warnings, strong ones before weak ones."""
MAX_CHARTS = 60
"""Most open episodes with a chart."""
CHART_WINDOWS = 80
"""Windows in a chart: the newest ones."""

_LOGARITHMS = ", ".join(f"'{name}'" for name in LOG_MONITORS)


def _in_its_unit(value: str) -> str:
    """Returns the expression for a reading in the unit of what is measured: `monitors` has some as log(1 + x)."""
    return f"if(monitor IN ({_LOGARITHMS}), exp({value}) - 1, {value})"


_OPEN_FIRST = "is_open DESC, severity = 'critical' DESC, strength DESC, changed_at DESC, episode"

WATCH_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs that the monitors read, the most recently read first.",
        """
        SELECT run, uniqExact(lane, agent, task_source, spec, `window`) AS windows,
               toUnixTimestamp64Milli(max(until)) AS last_ms
        FROM monitors GROUP BY run ORDER BY last_ms DESC, run LIMIT 500
        """,
    ),
    Panel(
        "episodes",
        "Alerts of the monitors and of the process on call: open ones first, then by severity and strength.",
        f"""
        SELECT episode, run, monitor, agent, task_source, spec, severity, state, is_open, message,
               {_in_its_unit("JSONExtract(details, 'value', 'Nullable(Float64)')")} AS value,
               {_in_its_unit("JSONExtract(details, 'expected', 'Nullable(Float64)')")} AS expected,
               JSONExtract(details, 'limit', 'Nullable(Float64)') AS limit,
               JSONExtractString(details, 'subject') AS subject,
               if(JSONHas(details, 'lane'), '', details) AS measured, runbook, pauses, resumed_by,
               since_version, toUnixTimestamp64Milli(since) AS since_ms,
               toUnixTimestamp64Milli(opened_at) AS opened_ms, toUnixTimestamp64Milli(changed_at) AS changed_ms,
               strength, examples, acknowledged_by
        FROM episodes WHERE {_RUN} ORDER BY {_OPEN_FIRST} LIMIT {MAX_EPISODES}
        """,
        title="Alerts",
        form=Form.TABLE,
        values=(
            Axis("since_ms", "Since", Unit.TIME),
            Axis("severity", "Severity", Unit.TEXT),
            Axis("state", "State", Unit.TEXT),
            Axis("run", "Run", Unit.TEXT),
            Axis("monitor", "Monitor", Unit.TEXT),
            Axis("agent", "Agent", Unit.TEXT),
            Axis("task_source", "Task source", Unit.TEXT),
            Axis("message", "What it says", Unit.TEXT),
            Axis("strength", "Strength (it alarms from 1 on)", Unit.NUMBER),
            Axis("acknowledged_by", "Acknowledged by", Unit.TEXT),
        ),
        wide=True,
        empty="No alerts.",
    ),
    Panel(
        "readings",
        "Readings of the monitors of open alerts, window by window.",
        f"""
        SELECT episode, `window`, last_version AS version, {_in_its_unit("reading.value")} AS value,
               {_in_its_unit("reading.expected")} AS expected, strength,
               arrayStringConcat(arrayFilter(part -> part != '', [toString(monitor), toString(agent),
                                                                  toString(task_source), toString(spec)]), ' ') AS alarm
        FROM (
            SELECT run, agent, task_source, spec, monitor, `window`, last_version, value, expected, strength
            FROM monitors FINAL WHERE {_RUN}
        ) AS reading
        INNER JOIN (
            SELECT episode, run, agent, task_source, spec, monitor FROM episodes
            WHERE {_RUN} AND is_open ORDER BY {_OPEN_FIRST} LIMIT {MAX_CHARTS}
        ) AS alarm USING (run, agent, task_source, spec, monitor)
        ORDER BY episode, `window` DESC LIMIT {CHART_WINDOWS} BY episode
        """,
        title="What is measured, of open alerts",
        form=Form.LINE,
        x=Axis("window", "Window", Unit.COUNT),
        values=(Axis("value", "Value", Unit.NUMBER),),
        series="alarm",
        wide=True,
        empty="No alert is open.",
    ),
    Panel(
        "watched",
        "What the monitors read: windows so far, by kind of observations, agent, task source and spec.",
        f"""
        SELECT run, lane, agent, task_source, spec, max(`window`) + 1 AS windows, max(last_version) AS version,
               toUnixTimestamp64Milli(max(until)) AS last_ms
        FROM monitors WHERE {_RUN} GROUP BY run, lane, agent, task_source, spec
        ORDER BY last_ms DESC, run, lane, agent, task_source, spec LIMIT 100
        """,
        title="What the monitors read",
        form=Form.TABLE,
        values=(
            Axis("run", "Run", Unit.TEXT),
            Axis("lane", "Observations", Unit.TEXT),
            Axis("agent", "Agent", Unit.TEXT),
            Axis("task_source", "Task source", Unit.TEXT),
            Axis("spec", "Reward or signal", Unit.TEXT),
            Axis("windows", "Windows", Unit.COUNT),
            Axis("version", "Version", Unit.VERSION),
            Axis("last_ms", "Last observation", Unit.TIME),
        ),
        wide=True,
        empty="The monitors have read nothing.",
    ),
    Panel(
        "elsewhere",
        "Open alerts of the monitors in other runs than the selected one.",
        """
        SELECT count() AS open FROM episodes WHERE is_open AND {run:String} != '' AND run != {run:String}
        """,
    ),
)
