"""The panels of the page that compares two sides, A and B: ranges of policy versions of one run or of two, or slices of
them.
"""

from collections.abc import Callable

from headrace.deploy.dashboard.certainty import Z, clustered_mean
from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit
from headrace.deploy.dashboard.slice_panels import choices
from headrace.deploy.dashboard.slices import CUTS, Slice, is_cut, keeps_unlabelled, matches
from headrace.streams.clickhouse.slices import TOOL_NAMES
from headrace.streams.clickhouse.views import latest_rewards

MAX_TASKS = 200
"""Most tasks in the table of wins and losses: those with the largest differences."""

TIE = 0.01
"""Largest difference of mean rewards that is a tie."""


def _in_range(side: str) -> str:
    """Returns the condition that a row is of the run and the versions of a side; without a first version from 0 on. A
    row without a version is of none.
    """
    return (
        f"({{{side}_run:String}} != '' AND run = {{{side}_run:String}}"
        f" AND oldest_version >= toUInt32OrZero({{{side}_from:String}})"
        f" AND ({{{side}_to:String}} = '' OR oldest_version <= toUInt32OrZero({{{side}_to:String}})))"
    )


def _slices_of(side: str) -> Callable[[Slice], str]:
    """Returns the slice of a side by kind, as an expression: its own, or else that of both sides."""
    return lambda kind: f"if({{{side}_{kind.name}:String}} = '', {kind.given}, {{{side}_{kind.name}:String}})"


def _in_slices(side: str) -> str:
    """Returns the condition that a row of `trajectories` is in the slices of a side."""
    return matches(_slices_of(side))


def _is_member(side: str) -> str:
    """Returns the same condition on a row of any table. A trajectory without labels is in the slices of those that
    lack them.
    """
    given = _slices_of(side)
    keeps = keeps_unlabelled(given)
    of_side = f"(WITH {TOOL_NAMES} SELECT trajectory_number FROM trajectories WHERE {_in_range(side)} AND "
    return (
        f"(NOT ({is_cut(given)}) OR ({keeps} AND trajectory_number NOT IN {of_side}NOT ({_in_slices(side)})))"
        f" OR (NOT ({keeps}) AND trajectory_number IN {of_side}{_in_slices(side)})))"
    )


_SELECTED = "purpose = if({kind:String} = '', 'train', {kind:String}) AND role != 'frozen'"


def _sides(a: str, b: str) -> tuple[str, str]:
    """Returns the side of a row, as an expression, and the condition that it is on one. ``a`` and ``b``: conditions
    that it is on them. A row that is on both counts on both.
    """
    return f"arrayJoin(arrayConcat(if({a}, ['A'], []), if({b}, ['B'], [])))", f"({a} OR {b}) AND {_SELECTED}"


_REWARDED_SIDE, _IS_REWARDED = _sides(*(f"({_in_range(side)} AND {_is_member(side)})" for side in "ab"))
_REWARDED = f"""(
    SELECT {_REWARDED_SIDE} AS side, trajectory_id, task_id, normalised, components, cluster
    FROM ({latest_rewards(_IS_REWARDED)})
)"""
_ASSEMBLED_SIDE, _IS_ASSEMBLED = _sides(*(f"({_in_range(side)} AND {_in_slices(side)})" for side in "ab"))
_ASSEMBLED = f"""(
    WITH {TOOL_NAMES}
    SELECT {_ASSEMBLED_SIDE} AS side, trajectory_id, sampled_tokens, turns, tools, call_tools, call_statuses,
           cluster
    FROM trajectories FINAL WHERE {_IS_ASSEMBLED}
)"""
_USED = f"(WITH {TOOL_NAMES} SELECT groupUniqArrayArray(100)(mapKeys(tools)) FROM trajectories WHERE {_IS_ASSEMBLED})"

_SIDES = """
            SELECT measure, anyIf(tuple(toNullable(mean)), side = 'A').1 AS a,
                   anyIf(tuple(toNullable(mean)), side = 'B').1 AS b,
                   b - a AS difference,
                   sqrt(anyIf(tuple(half), side = 'A').1 * anyIf(tuple(half), side = 'A').1
                      + anyIf(tuple(half), side = 'B').1 * anyIf(tuple(half), side = 'B').1) AS width,
                   difference - width AS low, difference + width AS high,
                   sumIf(observations, side = 'A') AS n_a, sumIf(observations, side = 'B') AS n_b
"""


def _compared(rows: str) -> str:
    """Returns a query that compares the means of ``rows`` (side, measure, cluster, value) on the two sides.

    The interval of the difference takes the sides as independent.
    """
    means = clustered_mean(rows, "side, measure", "mean", "observations")
    return f"""
        SELECT measure, a, b, difference, low, high, n_a, n_b FROM (
            {_SIDES}
            FROM (SELECT *, (high - low) / 2 AS half FROM ({means}))
            GROUP BY measure
        ) ORDER BY measure LIMIT 500
    """


_COMPARED_COLUMNS = (
    Axis("measure", "Measure", Unit.TEXT),
    Axis("a", "A", Unit.NUMBER),
    Axis("b", "B", Unit.NUMBER),
    Axis("difference", "B − A", Unit.NUMBER),
    Axis("n_a", "n of A", Unit.COUNT),
    Axis("n_b", "n of B", Unit.COUNT),
)

_TASKS = f"""
            SELECT task_id, avgIf(normalised, side = 'A') AS a, avgIf(normalised, side = 'B') AS b,
                   b - a AS difference, countIf(side = 'A') AS n_a, countIf(side = 'B') AS n_b
            FROM {_REWARDED} WHERE normalised IS NOT NULL AND task_id != ''
            GROUP BY task_id HAVING n_a > 0 AND n_b > 0
"""
_VERDICT = f"multiIf(difference > {TIE}, 'B wins', difference < -{TIE}, 'A wins', 'tie')"


def _histogram(rows: str, value: str, bin_: str, condition: str) -> str:
    return f"""
        SELECT side, bin, held / sum(held) OVER (PARTITION BY side) AS share,
               sum(held) OVER (PARTITION BY side) AS trajectories
        FROM (
            SELECT side, {bin_} AS bin, count() AS held FROM (
                SELECT side, {value} AS value FROM {rows} WHERE {condition}
            ) GROUP BY side, bin
        ) ORDER BY bin, side LIMIT 1000
    """


COMPARE_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs with their policy versions, the most recently active first.",
        """
        SELECT run, count() AS trajectories, min(oldest_version) AS first, max(oldest_version) AS last,
               toUnixTimestamp64Milli(max(ended_at)) AS last_ms, count() OVER () AS all_runs
        FROM trajectories FINAL WHERE oldest_version IS NOT NULL AND run != ''
        GROUP BY run ORDER BY last_ms DESC, run LIMIT 2000
        """,
        title="Runs",
        form=Form.DATA,
        values=(
            Axis("run", "Run", Unit.TEXT),
            Axis("trajectories", "Trajectories", Unit.COUNT),
            Axis("first", "First version", Unit.VERSION),
            Axis("last", "Newest version", Unit.VERSION),
            Axis("last_ms", "Last trajectory", Unit.TIME),
        ),
    ),
    choices("run != '' AND run IN ({a_run:String}, {b_run:String})"),
    Panel(
        "score",
        "Tasks that both sides attempted: on how many the mean reward of B is larger, smaller, or within "
        f"{TIE} of A's; and the mean difference over these tasks with its 95 % interval, each task counted once.",
        f"""
        SELECT countIf(verdict = 'B wins') AS b_wins, countIf(verdict = 'A wins') AS a_wins,
               countIf(verdict = 'tie') AS ties, count() AS tasks, avg(difference) AS mean,
               {Z} * stddevSamp(difference) / sqrt(count()) AS half, mean - half AS low, mean + half AS high
        FROM (SELECT difference, {_VERDICT} AS verdict FROM ({_TASKS}))
        """,
        title="Wins and losses",
        form=Form.FIGURES,
        values=(
            Axis("b_wins", "B wins", Unit.COUNT),
            Axis("a_wins", "A wins", Unit.COUNT),
            Axis("ties", "Ties", Unit.COUNT),
            Axis("tasks", "Tasks on both sides", Unit.COUNT),
            Axis("mean", "Mean difference", Unit.REWARD),
        ),
        low="low",
        high="high",
        n="tasks",
        cuts=CUTS,
    ),
    Panel(
        "rewards",
        "Mean reward, as a share of the largest possible, and of each component its value before the weight. "
        "Interval of the difference: 95 %, attempts at one task taken together.",
        _compared(f"""
            SELECT side, cluster, measured.1 AS measure, measured.2 AS value FROM (
                SELECT side, cluster, arrayJoin(arrayConcat(
                    [('reward', normalised)],
                    arrayMap((name, value) -> (concat('component ', name), toNullable(value)),
                             mapKeys(components), mapValues(components)))) AS measured
                FROM {_REWARDED}
            ) WHERE value IS NOT NULL
        """),
        title="Rewards and components",
        form=Form.TABLE,
        values=_COMPARED_COLUMNS,
        low="low",
        high="high",
        cuts=CUTS,
        wide=True,
        empty="No scored trajectories on these two sides: choose runs and versions above.",
    ),
    Panel(
        "reward_distribution",
        "Trajectories by reward, in steps of 0.05.",
        _histogram(
            _REWARDED,
            "assumeNotNull(normalised)",
            "round(floor(least(value, 0.9999) * 20) / 20, 2)",
            "normalised IS NOT NULL",
        ),
        title="Distribution of the reward",
        form=Form.DISTRIBUTION,
        x=Axis("bin", "Reward from", Unit.REWARD),
        values=(Axis("share", "Share of the trajectories", Unit.SHARE),),
        series="side",
        n="trajectories",
        cuts=CUTS,
        empty="No scored trajectories on these two sides.",
    ),
    Panel(
        "length_distribution",
        "Trajectories by sampled tokens, in powers of two.",
        _histogram(_ASSEMBLED, "sampled_tokens", "if(value = 0, 0, toUInt64(exp2(floor(log2(value)))))", "1"),
        title="Distribution of lengths",
        form=Form.DISTRIBUTION,
        x=Axis("bin", "Sampled tokens from", Unit.TOKENS),
        values=(Axis("share", "Share of the trajectories", Unit.SHARE),),
        series="side",
        n="trajectories",
        cuts=CUTS,
        empty="No trajectories on these two sides.",
    ),
    Panel(
        "lengths",
        "Mean over trajectories; a tool that a trajectory did not call counts 0 there.",
        _compared(f"""
            SELECT side, cluster, measured.1 AS measure, measured.2 AS value FROM (
                SELECT side, cluster, arrayJoin(arrayConcat(
                    [('sampled tokens', toFloat64(sampled_tokens)), ('turns', toFloat64(turns))],
                    arrayMap(name -> (concat('calls of ', name), toFloat64(tools[name])), {_USED}))) AS measured
                FROM {_ASSEMBLED}
            )
        """),
        title="Lengths and calls",
        form=Form.TABLE,
        values=_COMPARED_COLUMNS,
        low="low",
        high="high",
        cuts=CUTS,
        wide=True,
        empty="No trajectories on these two sides.",
    ),
    Panel(
        "tools",
        "Share of the calls of each tool that failed.",
        _compared(f"""
            SELECT side, cluster, toString(tool) AS measure, toFloat64(status = 'error') AS value
            FROM {_ASSEMBLED} ARRAY JOIN call_tools AS tool, call_statuses AS status
        """),
        title="Failed tool calls",
        form=Form.TABLE,
        values=_COMPARED_COLUMNS,
        low="low",
        high="high",
        cuts=CUTS,
        wide=True,
        empty="No tool calls on these two sides.",
    ),
    Panel(
        "tasks",
        f"Tasks that both sides attempted, those with the largest differences first, at most {MAX_TASKS}.",
        f"""
        SELECT task_id, a, b, difference, n_a, n_b, {_VERDICT} AS verdict FROM ({_TASKS})
        ORDER BY abs(difference) DESC, task_id LIMIT {MAX_TASKS}
        """,
        title="Tasks",
        form=Form.TABLE,
        values=(
            Axis("task_id", "Task", Unit.TEXT),
            Axis("a", "A", Unit.REWARD),
            Axis("b", "B", Unit.REWARD),
            Axis("difference", "B − A", Unit.REWARD),
            Axis("n_a", "n of A", Unit.COUNT),
            Axis("n_b", "n of B", Unit.COUNT),
            Axis("verdict", "Verdict", Unit.TEXT),
        ),
        cuts=CUTS,
        wide=True,
        empty="No task was attempted on both sides. A run that attempts each training task once has none: compare its "
        "evaluations, which repeat the held-out tasks.",
    ),
)
