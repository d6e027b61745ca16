"""Slices of charts, as SQL with the parameters of a page.

A chart is restricted to a slice (``?source=wide``) or split by one (``?by=source``). The kinds of slice are those of
:mod:`headrace.streams.clickhouse.slices`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.deploy.dashboard.panel import OF_RUN
from headrace.streams.clickhouse.slices import (
    LENGTH,
    LENGTHS,
    NONE,
    SHORTEST,
    TOOL_NAMES,
    VALUES,
    labelled_rewards,
)
from headrace.streams.clickhouse.tables import NUMBER_OF_TRAJECTORY

MAX_CHOICES = 200
"""Most slices of a kind that the page offers: those with the most trajectories."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A kind of slice, as SQL over the columns ``LABELS``."""

    name: str
    """Name of the parameter that restricts charts to one."""
    title: str
    """Name on the page."""
    condition: str
    """Condition that a row is in the slice ``?``, an expression."""
    of_unlabelled: str = NONE
    """The slice of a trajectory whose labels are unknown, so empty."""
    choices: tuple[str, ...] = ()
    """All slices of the kind, if they do not depend on the trajectories."""

    @property
    def given(self) -> str:
        """The parameter as an expression."""
        return f"{{{self.name}:String}}"

    def matches(self, given: str) -> str:
        """Returns the condition that a row is in the slice ``given``, an expression; any row is if that is empty."""
        return f"({given} = '' OR {self.condition.replace('?', given)})"


def _label(name: str, title: str, column: str) -> Slice:
    return Slice(name, title, f"({column} = ? OR ({column} = '' AND ? = '{NONE}'))")


SLICES: tuple[Slice, ...] = (
    _label("agent", "Agent", "agent"),
    _label("source", "Task source", "task_source"),
    Slice("tool", "Tool", f"(has(tool_names, ?) OR (empty(tool_names) AND ? = '{NONE}'))"),
    _label("tenant", "Tenant", "tenant"),
    _label("harness", "Harness version", "harness_version"),
    _label("channel", "Channel", "channel"),
    Slice("length", "Length in sampled tokens", f"{LENGTH} = ?", SHORTEST, LENGTHS),
)
"""Every kind of slice, in the order of the page."""

CUTS = tuple(each.name for each in SLICES)
"""The parameters that restrict charts to slices."""


def matches(given: Callable[[Slice], str]) -> str:
    """Returns the condition that a row with the columns ``LABELS`` is in the slices ``given``, expressions by kind."""
    return " AND ".join(each.matches(given(each)) for each in SLICES)


def is_cut(given: Callable[[Slice], str]) -> str:
    """Returns the condition that one of the slices ``given`` is not empty."""
    return f"concat({', '.join(map(given, SLICES))}) != ''"


def keeps_unlabelled(given: Callable[[Slice], str]) -> str:
    """Returns the condition that a trajectory without labels is in the slices ``given``, as all are in charts that are
    not cut.
    """
    return " AND ".join(f"{given(each)} IN ('', '{each.of_unlabelled}')" for each in SLICES)


def _selected(kind: Slice) -> str:
    return kind.given


MATCHES = matches(_selected)
"""Condition that a row with the columns ``LABELS`` is in the selected slices."""

IS_CUT = is_cut(_selected)
"""Condition on the parameters alone: charts are cut."""

KEEPS_UNLABELLED = keeps_unlabelled(_selected)
"""Condition on the parameters alone: a trajectory without labels is in the selected slices."""

_MEMBERS = f"(WITH {TOOL_NAMES} SELECT trajectory_number FROM trajectories WHERE {OF_RUN} AND {MATCHES})"

IS_MEMBER = f"(NOT ({IS_CUT}) OR {NUMBER_OF_TRAJECTORY} IN {_MEMBERS})"
"""Condition that the trajectory of a row of any table is in the selected slices. Trajectories that are not assembled
are in no slice."""

IS_IN_FLIGHT = " AND ".join(
    f"{NUMBER_OF_TRAJECTORY} NOT IN (SELECT {NUMBER_OF_TRAJECTORY} FROM {table} WHERE {OF_RUN})"
    for table in ("step_members", "rejected")
)
"""Condition that the trajectory of a row of any table is neither trained nor rejected."""

_VALUES_BY_KIND = "['']"
for _each in reversed(SLICES):
    _VALUES_BY_KIND = f"if({{by:String}} = '{_each.name}', {VALUES[_each.name]}, {_VALUES_BY_KIND})"

SLICE = f"if({{by:String}} = '', '', arrayJoin({_VALUES_BY_KIND}))"
"""Expression: the slices of a row of the kind ``{by:String}``, a row for each; the empty text if that is empty. Of
conditions on parameters ClickHouse computes only the branch that holds."""


def scored(*, labelled: str = "{by:String} != ''", only: str = "1", of: str = "") -> str:
    """Returns a query for the latest reward of each selected trajectory of the run with its labels.

    ``labelled``: whether all labels are needed, a condition on the parameters alone; if not, only `evaluation` has a
    meaning. By default they are if charts are split: joining the labels of half a million trajectories takes as long as
    everything else. ``only``: another condition on the parameters, without which nothing is read; ``of``: one on
    rewards.
    """
    # Rewards of other slices are dropped by the join with the labels, which are empty then, or, if it is not needed,
    # before the latest reward of each trajectory is looked for.
    joined = f"({KEEPS_UNLABELLED} OR {labelled})"
    needed = f"({labelled} OR ({IS_CUT} AND {KEEPS_UNLABELLED}) OR purpose = 'evaluate')"
    return labelled_rewards(
        f"{OF_RUN} AND {only}{of} AND ({joined} OR trajectory_number IN {_MEMBERS})",
        f"{OF_RUN} AND {only} AND {needed} AND ({KEEPS_UNLABELLED} OR {MATCHES})",
        f"(NOT {joined} OR if({KEEPS_UNLABELLED}, {MATCHES}, is_labelled))",
    )
