"""Slices: the kinds of trajectory by which charts are cut, as SQL on columns of the table `trajectories`.

A chart is restricted to a slice (``?source=wide``) or split by one (``?by=source``). A trajectory that lacks a label is
in the slice "(none)". In the slices of tools a trajectory counts once for each tool that it called. No table has the
channel by which a policy was served, so there is no such slice.
"""

from dataclasses import dataclass
from itertools import pairwise

from headrace.deploy.dashboard.certainty import CLUSTER
from headrace.deploy.dashboard.panel import OF_RUN
from headrace.streams.clickhouse.views import latest_rewards

NONE = "(none)"
"""Slice of the trajectories without a label."""

MAX_CHOICES = 200
"""Most slices of a kind that the page offers: those with the most trajectories."""

_BOUNDS = (64, 256, 1024, 4096, 16384)
_LENGTH = (
    f"multiIf(sampled_tokens < {_BOUNDS[0]}, 'under {_BOUNDS[0]}', "
    + ", ".join(f"sampled_tokens < {high}, '{low:,} to {high - 1:,}'" for low, high in pairwise(_BOUNDS))
    + f", '{_BOUNDS[-1]:,} and more')"
)


@dataclass(frozen=True, slots=True)
class Slice:
    """A kind of slice, as SQL over the columns ``LABELS``."""

    name: str
    """Name of the parameter that restricts charts to one."""
    title: str
    """Name on the page."""
    values: str
    """The slices of a row, an array of texts."""
    matches: str
    """Condition that a row is in the slice of the parameter."""


def _label(name: str, title: str, column: str) -> Slice:
    given = f"{{{name}:String}}"
    return Slice(
        name,
        title,
        f"[if({column} = '', '{NONE}', toString({column}))]",
        f"({column} = {given} OR ({column} = '' AND {given} = '{NONE}'))",
    )


SLICES: tuple[Slice, ...] = (
    _label("agent", "Agent", "agent"),
    _label("source", "Task source", "task_source"),
    Slice(
        "tool",
        "Tool",
        f"if(empty(tool_names), ['{NONE}'], arrayMap(name -> toString(name), tool_names))",
        f"(has(tool_names, {{tool:String}}) OR (empty(tool_names) AND {{tool:String}} = '{NONE}'))",
    ),
    _label("tenant", "Tenant", "tenant"),
    _label("harness", "Harness version", "harness_version"),
    Slice("length", "Length in sampled tokens", f"[{_LENGTH}]", f"{_LENGTH} = {{length:String}}"),
)
"""Every kind of slice, in the order of the page."""

CUTS = tuple(each.name for each in SLICES)
"""The parameters that restrict charts to slices."""

LABELS = "agent, task_source, tool_names, tenant, harness_version, sampled_tokens"
"""The columns that the conditions and expressions below need."""

TOOL_NAMES = "mapKeys(tools) AS tool_names"
"""One of these columns, from those of `trajectories`: joining a map takes twice as long as everything else."""

LABELS_OF_TRAJECTORY = LABELS.replace("tool_names", TOOL_NAMES)
"""The same columns, from those of `trajectories`."""

SAME_SLICES = (
    "cityHash64(agent, task_source, tenant, harness_version, tool_names)",
    f"roundDown(sampled_tokens, [0, {', '.join(map(str, _BOUNDS))}])",
)
"""Expressions that are equal in rows that are in the same slices, to group such rows before they are counted by
slice."""

MATCHES = " AND ".join(f"({{{each.name}:String}} = '' OR {each.matches})" for each in SLICES)
"""Condition that a row with the columns ``LABELS`` is in the selected slices."""

IS_MEMBER = (
    f"(concat({', '.join(f'{{{name}:String}}' for name in CUTS)}) = '' OR trajectory_id IN "
    f"(WITH {TOOL_NAMES} SELECT trajectory_id FROM trajectories WHERE {OF_RUN} AND {MATCHES}))"
)
"""The same condition for a row of any table with a trajectory. Trajectories that are not assembled are in no slice."""

_VALUES_BY_KIND = "['']"
for _each in reversed(SLICES):
    _VALUES_BY_KIND = f"if({{by:String}} = '{_each.name}', {_each.values}, {_VALUES_BY_KIND})"

SLICE = f"if({{by:String}} = '', '', arrayJoin({_VALUES_BY_KIND}))"
"""Expression: the slices of a row of the kind ``{by:String}``, a row for each; the empty text if that is empty. Of
conditions on parameters ClickHouse computes only the branch that holds."""

EVERY_SLICE = (
    "arrayJoin(arrayConcat([('all', 'all')], "
    + ", ".join(f"arrayMap(each -> ('{each.name}', each), {each.values})" for each in SLICES)
    + "))"
)
"""Expression: (kind, slice) of a row for all kinds, a row for each, and ('all', 'all')."""

IS_SLICED = f"concat({', '.join(f'{{{name}:String}}' for name in ('by', *CUTS))}) != ''"
"""Condition on the parameters alone: charts are cut or split, so that the labels of trajectories are needed."""


def scored(*, labelled: str = f"({IS_SLICED} OR purpose = 'evaluate')", of: str = "") -> str:
    """Returns a query for the latest reward of each selected trajectory of the run with its labels.

    ``labelled``: which trajectories' labels are needed, a condition on the parameters and columns of `trajectories`;
    others have empty ones. By default those of evaluations, and all if charts are cut or split: joining the labels of
    half a million trajectories takes three times as long as everything else. ``of``: another condition on rewards.
    """
    return f"""(
    SELECT trajectory_id, cluster, in_group, task_id, purpose, role, evaluation, version, normalised, total, maximum,
           components, weights, {LABELS}
    FROM (
        SELECT trajectory_id, task_id, purpose, role, oldest_version AS version, normalised, total, maximum, components,
               weights, group_id != '' AS in_group, {CLUSTER} AS cluster
        FROM ({latest_rewards(OF_RUN + of)})
    ) AS scored
    LEFT ANY JOIN (
        SELECT trajectory_id, evaluation, {LABELS_OF_TRAJECTORY} FROM trajectories WHERE {OF_RUN} AND {labelled}
    ) AS labelled USING (trajectory_id)
    WHERE {MATCHES}
)"""
