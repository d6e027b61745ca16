"""Slices: the kinds of trajectory by which charts are cut, as SQL on columns of the table `trajectories`.

A chart is restricted to a slice (``?source=wide``) or split by one (``?by=source``). A trajectory that lacks a label is
in the slice "(none)". In the slices of tools a trajectory counts once for each tool that it called. No table has the
channel by which a policy was served, so there is no such slice.
"""

from dataclasses import dataclass
from itertools import pairwise

from headrace.deploy.dashboard.panel import OF_RUN

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
    """A kind of slice."""

    name: str
    """Name of the parameter that restricts charts to one."""
    title: str
    """Name on the page."""
    values: str
    """SQL: the slices of a row of `trajectories`, an array of texts."""


def _label(column: str) -> str:
    return f"[if({column} = '', '{NONE}', toString({column}))]"


SLICES: tuple[Slice, ...] = (
    Slice("agent", "Agent", _label("agent")),
    Slice("source", "Task source", _label("task_source")),
    Slice("tool", "Tool", f"if(empty(mapKeys(tools)), ['{NONE}'], arrayMap(name -> toString(name), mapKeys(tools)))"),
    Slice("tenant", "Tenant", _label("tenant")),
    Slice("harness", "Harness version", _label("harness_version")),
    Slice("length", "Length in sampled tokens", f"[{_LENGTH}]"),
)
"""Every kind of slice, in the order of the page."""

CUTS = tuple(each.name for each in SLICES)
"""The parameters that restrict charts to slices."""

LABELS = "agent, task_source, tools, tenant, harness_version, sampled_tokens"
"""The columns of `trajectories` that the conditions and expressions below need."""

MATCHES = " AND ".join(
    f"({{{each.name}:String}} = '' OR has({each.values}, {{{each.name}:String}}))" for each in SLICES
)
"""Condition that a row with the columns ``LABELS`` is in the selected slices."""

IS_MEMBER = (
    f"(concat({', '.join(f'{{{name}:String}}' for name in CUTS)}) = '' OR trajectory_id IN "
    f"(SELECT trajectory_id FROM trajectories WHERE {OF_RUN} AND {MATCHES}))"
)
"""The same condition for a row of any table with a trajectory. Trajectories that are not assembled are in no slice."""

SLICE = (
    "arrayJoin(multiIf(" + ", ".join(f"{{by:String}} = '{each.name}', {each.values}" for each in SLICES) + ", ['']))"
)
"""Expression: the slices of a row of the kind ``{by:String}``, a row for each; the empty text if that is empty."""

EVERY_SLICE = (
    "arrayJoin(arrayConcat([('all', 'all')], "
    + ", ".join(f"arrayMap(each -> ('{each.name}', each), {each.values})" for each in SLICES)
    + "))"
)
"""Expression: (kind, slice) of a row for all kinds, a row for each, and ('all', 'all')."""

SCORED = f"""(
    SELECT trajectory_id, cluster, in_group, task_id, purpose, role, evaluation, version, normalised, total, maximum,
           components, weights, {LABELS}
    FROM (
        SELECT trajectory_id, task_id, purpose, role, oldest_version AS version, normalised, total, maximum, components,
               weights, group_id != '' AS in_group,
               multiIf(group_id != '', group_id, task_id != '', task_id, trajectory_id) AS cluster
        FROM rewards_latest WHERE {OF_RUN}
    ) AS scored
    LEFT ANY JOIN (
        SELECT trajectory_id, evaluation, {LABELS} FROM trajectories WHERE {OF_RUN}
    ) AS labelled USING (trajectory_id)
    WHERE {MATCHES}
)"""
"""The latest reward of each selected trajectory with its labels. cluster: trajectories that share a task, whose rewards
are not independent: those of a group, or of an evaluation's task."""
