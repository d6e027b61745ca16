"""The overview's panels about trajectories, each cut by slices: rewards, components, lengths and tools by version."""

from headrace.deploy.dashboard.certainty import FEW, Z, clustered_mean, variance_of_sums
from headrace.deploy.dashboard.panel import OF_RUN, Axis, Form, Panel, Unit
from headrace.deploy.dashboard.slices import CUTS, IS_CUT, MATCHES, MAX_CHOICES, SLICE, scored
from headrace.streams.clickhouse.slices import (
    ANY_LABELS,
    EVERY_SLICE,
    LABELS_OF_TRAJECTORY,
    SAME_SLICES,
    SUMS,
    sums_by_slice,
)

MAX_VERSIONS = 2000
"""Number of policy versions or steps in a chart: the newest ones."""

SPAN = 5
"""Versions before and after a fall that are compared."""

_ROWS = MAX_VERSIONS * 5
_VERSION = Axis("version", "Policy version", Unit.VERSION)
_TRAINING = "purpose = 'train' AND role != 'frozen'"
_VERSIONED = " AND oldest_version IS NOT NULL"
"""Condition on `rewards`: the tokens have a policy version. Beside `assumeNotNull(version) AS version`, a condition on
`version` would be one on that, and always hold."""
_SIDE = (
    "multiIf(purpose = 'train' AND role = 'frozen', 'frozen', purpose = 'train', 'train', evaluation = '', 'evaluate', "
    "evaluation IN ('train', 'frozen', 'evaluate'), concat('evaluation ', evaluation), evaluation)"
)
"""Expression: what a trajectory was made for: training rollouts, and evaluations by label."""
_INTERVAL = "Band: 95 % interval, attempts at one task taken together."


def _assembled(of: str = "") -> str:
    """Returns a query for the selected training rollouts of the run. ``of``: another condition on `trajectories`."""
    return f"""(
    SELECT trajectory_id, cluster, assumeNotNull(oldest_version) AS version, call_tools, call_statuses,
           {LABELS_OF_TRAJECTORY}
    FROM trajectories FINAL
    WHERE {OF_RUN} AND purpose = 'train' AND role != 'frozen' AND oldest_version IS NOT NULL AND {MATCHES}{of}
)"""


# Of each histogram: the ten newest versions, and the ten oldest if they are others; split by slices, the newest only.
_FIRST, _LAST = (
    f"(SELECT assumeNotNull({end}(oldest_version)) FROM trajectories "
    f"WHERE {OF_RUN} AND purpose = 'train' AND role != 'frozen')"
    for end in ("min", "max")
)
_AT_ENDS = f" AND (oldest_version + 10 > {_LAST} OR ({{by:String}} = '' AND oldest_version < {_FIRST} + 10))"


def _histogram(value: str, bin_: str, rows: str, condition: str) -> str:
    """Returns a query for the histogram of ``value`` over the columns of ``rows``, trajectories of the versions
    ``_AT_ENDS``: series, bin, share, trajectories, and the first and last version of the series.
    """
    return f"""
        SELECT series, bin, held / sum(held) OVER (PARTITION BY series) AS share,
               sum(held) OVER (PARTITION BY series) AS trajectories, first, last
        FROM (
            SELECT multiIf(NOT is_newest, concat('first: v', toString({_FIRST}), ' to v', toString({_FIRST} + 9)),
                           {{by:String}} != '', slice,
                           concat('newest: v', toString(greatest({_FIRST}, {_LAST} - 9)), ' to v', toString({_LAST})))
                       AS series,
                   bin, held, if(is_newest, greatest({_FIRST}, {_LAST} - 9), {_FIRST}) AS first,
                   if(is_newest, {_LAST}, {_FIRST} + 9) AS last
            FROM (
                SELECT is_newest, slice, {bin_} AS bin, count() AS held
                FROM (
                    SELECT assumeNotNull(version) + 10 > {_LAST} AS is_newest, {value} AS value, {SLICE} AS slice
                    FROM {rows} WHERE {condition}
                ) GROUP BY is_newest, slice, bin
            )
        )
        ORDER BY bin, series LIMIT {_ROWS}
    """


def _by_version(
    name: str,
    title: str,
    about: str,
    rows: str,
    *,
    value: Axis,
    empty: str,
    series: str = "series",
    facet: str = "",
    n: str = "trajectories",
    splits: bool = True,
    wide: bool = False,
) -> Panel:
    """Returns the panel of the mean of ``value`` by policy version and ``series``, with intervals, over ``rows``: a
    query with the columns of :func:`clustered_mean`, ``version`` and ``series``, and ``facet`` if there is one.
    """
    keys = ", ".join(filter(None, (facet, series, "version")))
    return Panel(
        name,
        about + _INTERVAL,
        clustered_mean(rows, keys, value.column, n, share=value.unit is Unit.SHARE)
        + f" ORDER BY version DESC, {series} LIMIT {_ROWS}",
        title=title,
        form=Form.LINE,
        x=_VERSION,
        values=(value,),
        series=series,
        facet=facet,
        low="low",
        high="high",
        n=n,
        cuts=CUTS,
        splits=splits,
        wide=wide,
        empty=empty,
    )


def _distribution(name: str, title: str, what: str, histogram: str, *, bin_: Axis, empty: str) -> Panel:
    """Returns the panel of a ``histogram`` of training rollouts by ``what``."""
    return Panel(
        name,
        f"Training rollouts by {what}: the ten newest versions and the ten first.",
        histogram,
        title=title,
        form=Form.DISTRIBUTION,
        x=bin_,
        values=(Axis("share", "Share of the trajectories", Unit.SHARE),),
        series="series",
        n="trajectories",
        cuts=CUTS,
        splits=True,
        empty=empty,
    )


REWARD = _by_version(
    "reward",
    "Reward by policy version",
    "Mean over trajectories by their oldest policy version: training rollouts, and evaluations by label. ",
    f"""
            SELECT if({{by:String}} != '', {SLICE}, {_SIDE}) AS series,
                   assumeNotNull(version) AS version, cluster, assumeNotNull(normalised) AS value
            FROM {scored(of=_VERSIONED)}
            WHERE normalised IS NOT NULL AND ({{by:String}} = '' OR {_TRAINING})
        """,
    value=Axis("reward", "Reward", Unit.REWARD),
    wide=True,
    empty="No rewards with a policy version. `headrace demo` starts a run; recorded runs (`headrace import FILE`) "
    "have no policy version and are counted below.",
)

_IS_COMPUTED = f"({{run:String}} = '' OR {IS_CUT})"
COMPUTED_SUMS = sums_by_slice(
    f"(SELECT * FROM {scored(labelled='1', only=_IS_COMPUTED, of=_VERSIONED)} "
    f"WHERE {_TRAINING} AND normalised IS NOT NULL)"
)
"""Query: sums of the rewards by slice and version, from the rewards."""
SUMS_OF_RUN = f"""
                    -- of one run that is not cut, the sums that are kept
                    SELECT kind, slice, toInt64(version) AS version, {", ".join(SUMS)}
                    FROM slice_sums FINAL
                    ARRAY JOIN kinds AS kind, slices AS slice, {", ".join(f"{c} AS {n}" for n, c in SUMS.items())}
                    WHERE run = {{run:String}} AND NOT {_IS_COMPUTED}
                    UNION ALL
                    SELECT kind, slice, version, {", ".join(SUMS)} FROM (
{COMPUTED_SUMS}
                    )
                """
"""Query: the same sums, as they are kept, or computed if they are not."""

FALLS = Panel(
    "falls",
    f"The largest fall of the reward in each slice: {SPAN} versions from one version on against the {SPAN} before it, "
    f"with at least {FEW} trajectories on each side. Many places are searched, so a fall of fewer than 4 standard "
    "errors may be chance. A group counts at its oldest version. A fall in one slice can hide in a line that rises.",
    f"""
        SELECT kind, slice, since, before, after, change, change - {Z} * error AS low, change + {Z} * error AS high,
               n_before, n_after, if(error > 0, round(change / error, 1), NULL) AS errors,
               if(change < -4 * error, 'clear', 'may be chance') AS verdict
        FROM (
            SELECT kind, slice, since, s0 / m0 AS before, s1 / m1 AS after, after - before AS change,
                   m0 AS n_before, m1 AS n_after,
                   sqrt({variance_of_sums("before", "q0", "p0", "w0", "m0", "g0")}
                      + {variance_of_sums("after", "q1", "p1", "w1", "m1", "g1")}) AS error
            FROM (
                SELECT kind, slice, version AS since,
                       sum(total) OVER earlier AS s0, sum(size) OVER earlier AS m0, sum(square) OVER earlier AS q0,
                       sum(product) OVER earlier AS p0, sum(square_size) OVER earlier AS w0,
                       sum(held_clusters) OVER earlier AS g0,
                       sum(total) OVER later AS s1, sum(size) OVER later AS m1, sum(square) OVER later AS q1,
                       sum(product) OVER later AS p1, sum(square_size) OVER later AS w1,
                       sum(held_clusters) OVER later AS g1
                FROM (SELECT *, uniqExact(slice) OVER (PARTITION BY kind) AS slices FROM ({SUMS_OF_RUN}))
                WHERE kind = 'all' OR slices > 1  -- a kind with one slice repeats the run
                WINDOW earlier AS (PARTITION BY kind, slice ORDER BY version
                                   RANGE BETWEEN {SPAN} PRECEDING AND 1 PRECEDING),
                       later AS (PARTITION BY kind, slice ORDER BY version
                                 RANGE BETWEEN CURRENT ROW AND {SPAN - 1} FOLLOWING)
            )
            WHERE m0 >= {FEW} AND m1 >= {FEW} AND g0 > 1 AND g1 > 1
        )
        WHERE change < 0 AND error >= 0
        ORDER BY change / error, change, since LIMIT 1 BY kind, slice LIMIT 50
    """,
    title="Falls, by slice",
    form=Form.TABLE,
    values=(
        Axis("kind", "Slice of", Unit.TEXT),
        Axis("slice", "Slice", Unit.TEXT),
        Axis("since", "From", Unit.VERSION),
        Axis("before", "Before", Unit.REWARD),
        Axis("after", "After", Unit.REWARD),
        Axis("change", "Change", Unit.REWARD),
        Axis("errors", "In standard errors", Unit.NUMBER),
        Axis("n_before", "n before", Unit.COUNT),
        Axis("n_after", "n after", Unit.COUNT),
        Axis("verdict", "Verdict", Unit.TEXT),
    ),
    low="low",
    high="high",
    cuts=CUTS,
    wide=True,
    empty=f"No fall: either no slice fell, or no version has {FEW} trajectories before it and {FEW} from it on yet.",
)

COMPONENTS = _by_version(
    "components",
    "Components of the reward",
    "Weight × value of each component of training rollouts, as a share of the largest possible reward. ",
    f"""
            SELECT concat(if(slice = '', '', concat(slice, ': ')), name) AS component, version, cluster, value
            FROM (
                SELECT assumeNotNull(version) AS version, cluster, {SLICE} AS slice, arrayJoin(arrayMap(
                           (name, value) -> (name, value * weights[name] / assumeNotNull(maximum)),
                           mapKeys(components), mapValues(components))) AS term,
                       toString(term.1) AS name, term.2 AS value
                FROM {scored(of=_VERSIONED)} WHERE {_TRAINING} AND maximum > 0 AND total IS NOT NULL
            )
        """,
    value=Axis("share", "Contribution", Unit.REWARD),
    series="component",
    empty="No scored training rollouts.",
)

HELD_OUT = _by_version(
    "held_out",
    "Each component, trained and held out",
    "Weight × value of each component, as a share of the largest possible reward: training rollouts beside evaluations "
    "by label. A component that rises in training and not on held-out tasks is learned by heart, or hacked. ",
    f"""
            SELECT component, concat(component, ': ', side) AS series, version, cluster, value
            FROM (
                SELECT assumeNotNull(version) AS version, cluster, {_SIDE} AS side, arrayJoin(arrayMap(
                           (name, value) -> (name, value * weights[name] / assumeNotNull(maximum)),
                           mapKeys(components), mapValues(components))) AS term,
                       toString(term.1) AS component, term.2 AS value
                FROM {scored(of=_VERSIONED)}
                WHERE maximum > 0 AND total IS NOT NULL AND (purpose != 'train' OR {_TRAINING})
            )
        """,
    value=Axis("share", "Contribution", Unit.REWARD),
    facet="component",
    splits=False,
    wide=True,
    empty="No scored trajectories with a policy version.",
)

SOURCES = _by_version(
    "sources",
    "Components by task source",
    "Value of each component before its weight, for each kind of task that the run names. A reward that rises while "
    "the outcome of one source falls pays for something else. ",
    f"""
            SELECT concat(toString(task_source), ': ', name) AS series, version, cluster, value
            FROM (
                SELECT assumeNotNull(version) AS version, cluster, task_source,
                       arrayJoin(arrayZip(mapKeys(components), mapValues(components))) AS term,
                       toString(term.1) AS name, term.2 AS value
                FROM {scored(labelled="1", of=_VERSIONED)} WHERE {_TRAINING} AND total IS NOT NULL AND task_source != ''
            )
        """,
    value=Axis("value", "Value of the component", Unit.NUMBER),
    splits=False,
    empty="No task of this run names its source (`source` in the task's data).",
)

REWARD_DISTRIBUTION = _distribution(
    "reward_distribution",
    "Distribution of the reward",
    "reward, in steps of 0.05",
    _histogram(
        "assumeNotNull(normalised)",
        "round(floor(least(value, 0.9999) * 20) / 20, 2)",
        scored(of=_AT_ENDS),
        f"{_TRAINING} AND normalised IS NOT NULL",
    ),
    bin_=Axis("bin", "Reward from", Unit.REWARD),
    empty="No scored training rollouts.",
)

LENGTHS = _by_version(
    "lengths",
    "Length by policy version",
    "Mean number of tokens that the model sampled in a training rollout. ",
    f"""
            SELECT if({{by:String}} = '', 'sampled tokens', {SLICE}) AS series, version, cluster,
                   toFloat64(sampled_tokens) AS value
            FROM {_assembled()}
        """,
    value=Axis("tokens", "Sampled tokens", Unit.TOKENS),
    empty="No training rollouts with a policy version.",
)

LENGTH_DISTRIBUTION = _distribution(
    "length_distribution",
    "Distribution of lengths",
    "sampled tokens, in powers of two",
    _histogram("sampled_tokens", "if(value = 0, 0, toUInt64(exp2(floor(log2(value)))))", _assembled(_AT_ENDS), "1"),
    bin_=Axis("bin", "Sampled tokens from", Unit.TOKENS),
    empty="No training rollouts with a policy version.",
)

TOOLS = _by_version(
    "tools",
    "Failed tool calls",
    "Share of the calls of each tool that failed, in training rollouts. Calls that never returned count as calls. ",
    f"""
            SELECT if(slice = '', tool, slice) AS series, version, cluster, status = 'error' AS value
            FROM (
                SELECT version, cluster, toString(called) AS tool, status,
                       if({{by:String}} IN ('', 'tool'), '', {SLICE}) AS slice
                FROM {_assembled()} ARRAY JOIN call_tools AS called, call_statuses AS status
            )
            WHERE {{tool:String}} = '' OR tool = {{tool:String}}
        """,
    value=Axis("failed", "Share that failed", Unit.SHARE),
    n="calls",
    empty="No tool calls of training rollouts.",
)


def choices(of: str) -> Panel:
    """Returns the panel of the slices of the trajectories for which ``of`` holds, a condition on `trajectories`."""
    return Panel(
        "choices",
        f"The slices with their trajectories, at most {MAX_CHOICES} of a kind: those with the most.",
        f"""
        SELECT place.1 AS kind, place.2 AS slice, sum(held) AS trajectories
        FROM (
            SELECT held, {EVERY_SLICE} AS place
            FROM (
                SELECT count() AS held, {ANY_LABELS}
                FROM (SELECT {LABELS_OF_TRAJECTORY}, {SAME_SLICES} FROM trajectories FINAL WHERE {of})
                GROUP BY labels_number, length_number
            )
        )
        WHERE kind != 'all' GROUP BY kind, slice ORDER BY kind, trajectories DESC, slice LIMIT {MAX_CHOICES} BY kind
        """,
        title="Slices",
        form=Form.DATA,
        values=(
            Axis("kind", "Slice of", Unit.TEXT),
            Axis("slice", "Slice", Unit.TEXT),
            Axis("trajectories", "Trajectories", Unit.COUNT),
        ),
    )


CHOICES = choices(OF_RUN)
"""The slices of the run."""
