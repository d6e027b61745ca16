"""Slices of charts, as SQL with the parameters of a page.

A chart is restricted to a slice (``?source=wide``) or split by one (``?by=source``). The kinds of slice are those of
:mod:`headrace.streams.clickhouse.slices`.
"""

from dataclasses import dataclass

from headrace.deploy.dashboard.panel import OF_RUN
from headrace.streams.clickhouse.slices import LENGTH, NONE, NUMBER, TOOL_NAMES, VALUES, labelled_rewards

MAX_CHOICES = 200
"""Most slices of a kind that the page offers: those with the most trajectories."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A kind of slice, as SQL over the columns ``LABELS``."""

    name: str
    """Name of the parameter that restricts charts to one."""
    title: str
    """Name on the page."""
    matches: str
    """Condition that a row is in the slice of the parameter."""


def _label(name: str, title: str, column: str) -> Slice:
    given = f"{{{name}:String}}"
    return Slice(name, title, f"({column} = {given} OR ({column} = '' AND {given} = '{NONE}'))")


SLICES: tuple[Slice, ...] = (
    _label("agent", "Agent", "agent"),
    _label("source", "Task source", "task_source"),
    Slice(
        "tool",
        "Tool",
        f"(has(tool_names, {{tool:String}}) OR (empty(tool_names) AND {{tool:String}} = '{NONE}'))",
    ),
    _label("tenant", "Tenant", "tenant"),
    _label("harness", "Harness version", "harness_version"),
    Slice("length", "Length in sampled tokens", f"{LENGTH} = {{length:String}}"),
)
"""Every kind of slice, in the order of the page."""

CUTS = tuple(each.name for each in SLICES)
"""The parameters that restrict charts to slices."""

MATCHES = " AND ".join(f"({{{each.name}:String}} = '' OR {each.matches})" for each in SLICES)
"""Condition that a row with the columns ``LABELS`` is in the selected slices."""

IS_CUT = f"concat({', '.join(f'{{{name}:String}}' for name in CUTS)}) != ''"
"""Condition on the parameters alone: charts are cut."""

IS_MEMBER = (
    f"(NOT ({IS_CUT}) OR trajectory_id IN "
    f"(WITH {TOOL_NAMES} SELECT trajectory_id FROM trajectories WHERE {OF_RUN} AND {MATCHES}))"
)
"""Condition that the trajectory of a row of any table is in the selected slices. Trajectories that are not assembled
are in no slice."""

IS_IN_FLIGHT = " AND ".join(
    f"{NUMBER} NOT IN (SELECT {NUMBER} FROM {table} WHERE {OF_RUN})" for table in ("step_members", "rejected")
)
"""Condition that the trajectory of a row of any table is neither trained nor rejected."""

_VALUES_BY_KIND = "['']"
for _each in reversed(SLICES):
    _VALUES_BY_KIND = f"if({{by:String}} = '{_each.name}', {VALUES[_each.name]}, {_VALUES_BY_KIND})"

SLICE = f"if({{by:String}} = '', '', arrayJoin({_VALUES_BY_KIND}))"
"""Expression: the slices of a row of the kind ``{by:String}``, a row for each; the empty text if that is empty. Of
conditions on parameters ClickHouse computes only the branch that holds."""

IS_SLICED = f"concat({', '.join(f'{{{name}:String}}' for name in ('by', *CUTS))}) != ''"
"""Condition on the parameters alone: charts are cut or split, so that the labels of trajectories are needed."""


def scored(*, labelled: str = f"({IS_SLICED} OR purpose = 'evaluate')", of: str = "") -> str:
    """Returns a query for the latest reward of each selected trajectory of the run with its labels.

    ``labelled``: which trajectories' labels are needed, a condition on the parameters and columns of `trajectories`;
    others have empty ones. By default those of evaluations, and all if charts are cut or split: joining the labels of
    half a million trajectories takes as long as everything else. ``of``: another condition on rewards.
    """
    return labelled_rewards(OF_RUN + of, f"{OF_RUN} AND {labelled}", MATCHES)
