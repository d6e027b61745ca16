"""Slices: the kinds of trajectory by which rewards are summed and charts are cut, as SQL over `trajectories`.

A trajectory that lacks a label is in the slice "(none)". In the slices of tools a trajectory counts once for each tool
that it called.
"""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from headrace.streams.clickhouse.views import latest_rewards

NONE = "(none)"
"""Slice of the trajectories without a label."""

_BOUNDS = (64, 256, 1024, 4096, 16384)
SHORTEST = f"under {_BOUNDS[0]}"
"""Slice of the shortest trajectories, and of those of unknown length."""
LENGTHS = (
    SHORTEST,
    *(f"{low:,} to {high - 1:,}" for low, high in pairwise(_BOUNDS)),
    f"{_BOUNDS[-1]:,} and more",
)
"""The slices by length in sampled tokens."""
LENGTH = (
    "multiIf("
    + ", ".join(f"sampled_tokens < {bound}, '{name}'" for bound, name in zip(_BOUNDS, LENGTHS, strict=False))
    + f", '{LENGTHS[-1]}')"
)
"""Expression: the slice of a row by its length in sampled tokens."""


def _of_label(column: str) -> str:
    return f"[if({column} = '', '{NONE}', toString({column}))]"


VALUES: Mapping[str, str] = MappingProxyType(
    {
        "agent": _of_label("agent"),
        "source": _of_label("task_source"),
        "tool": f"if(empty(tool_names), ['{NONE}'], arrayMap(name -> toString(name), tool_names))",
        "tenant": _of_label("tenant"),
        "harness": _of_label("harness_version"),
        "channel": _of_label("channel"),
        "length": f"[{LENGTH}]",
    }
)
"""Kind of slice → the slices of a row, an expression over the columns ``LABELS``: an array of texts."""

LABELS = "agent, task_source, tool_names, tenant, harness_version, channel, sampled_tokens"
"""The columns that these expressions need."""

TOOL_NAMES = "mapKeys(tools) AS tool_names"
"""One of these columns, from those of `trajectories`: joining a map takes twice as long as everything else."""

LABELS_OF_TRAJECTORY = LABELS.replace("tool_names", TOOL_NAMES)
"""The same columns, from those of `trajectories`."""

ANY_LABELS = ", ".join(f"any({label}) AS {label}" for label in LABELS.split(", "))
"""The same columns, of rows that are in the same slices."""

SAME_SLICES = (
    "cityHash64(agent, task_source, tenant, harness_version, channel, tool_names) AS labels_number, "
    f"roundDown(sampled_tokens, [0, {', '.join(map(str, _BOUNDS))}]) AS length_number"
)
"""Expressions that are equal in rows that are in the same slices, to group such rows before they are counted by
slice."""

EVERY_SLICE = (
    "arrayJoin(arrayConcat([('all', 'all')], "
    + ", ".join(f"arrayMap(each -> ('{kind}', each), {values})" for kind, values in VALUES.items())
    + "))"
)
"""Expression: (kind, slice) of a row for all kinds, a row for each, and ('all', 'all')."""


def labelled_rewards(rewards: str, labels: str, of: str = "1") -> str:
    """Returns a query for the latest reward of each trajectory with its labels.

    ``rewards``: a condition on `rewards`, as that of :func:`latest_rewards`; ``labels``: a condition on `trajectories`,
    those whose labels are needed, others have empty ones; ``of``: a condition on the result.
    """
    return f"""(
    SELECT cluster, in_group, task_id, purpose, role, evaluation, version, normalised, total, maximum, components,
           weights, {LABELS}
    FROM (
        SELECT trajectory_number, task_id, purpose, role, oldest_version AS version, normalised, total, maximum,
               components, weights, group_id != '' AS in_group, cluster
        FROM ({latest_rewards(rewards)})
    ) AS scored
    LEFT ANY JOIN (
        SELECT trajectory_number, 1 AS is_labelled, evaluation, {LABELS_OF_TRAJECTORY}
        FROM trajectories WHERE {labels}
    ) AS labelled USING (trajectory_number)
    WHERE {of}
)"""


def sums_by_slice(rows: str) -> str:
    """Returns a query for sums of rewards by slice and version, with the columns ``kind``, ``slice``, ``version`` and
    those of :data:`SUMS`. A group counts as a whole at its oldest version: its attempts are one cluster.

    ``rows``: a query with the columns of :func:`labelled_rewards`, of trajectories that have a reward and a version.
    """
    return f"""SELECT kind, slice, own AS version, sum(t) AS total, sum(k) AS size, sum(t * t) AS square,
       sum(t * k) AS product, sum(toFloat64(k) * k) AS square_size, count() AS held_clusters
FROM (
    SELECT any(place.1) AS kind, any(place.2) AS slice, min(sampled_by) AS own, sum(score) AS t, sum(held) AS k
    FROM (
        SELECT sampled_by, apart, cluster, score, held, {EVERY_SLICE} AS place, cityHash64(place) AS number
        FROM (
            SELECT sampled_by, apart, cluster, sum(reward) AS score, count() AS held, {ANY_LABELS}
            FROM (
                SELECT toInt64(assumeNotNull(version)) AS sampled_by, cluster, if(in_group, -1, sampled_by) AS apart,
                       assumeNotNull(normalised) AS reward, {LABELS}, {SAME_SLICES}
                FROM {rows}
            ) GROUP BY sampled_by, apart, cluster, labels_number, length_number
        )
    ) GROUP BY number, apart, cluster
) GROUP BY kind, slice, version"""


SUMS: Mapping[str, str] = MappingProxyType(
    {
        "total": "totals",
        "size": "sizes",
        "square": "squares",
        "product": "products",
        "square_size": "square_sizes",
        "held_clusters": "clusters",
    }
)
"""Column of :func:`sums_by_slice` → column of the table `slice_sums`."""
