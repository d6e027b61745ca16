"""A panel: a named query with its result as columns. The queries are plain ClickHouse SQL that any client can run.

Every query has the parameter ``run``; the empty text means all runs. Results are columns: name → list.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Columns: TypeAlias = dict[str, list[Any]]

OF_RUN = "({run:String} = '' OR run = {run:String})"
"""Condition that a row belongs to the selected run."""

STARTS = (
    "(SELECT trajectory_id, started_run AS run, started_group_id AS group_id, started_purpose AS purpose FROM events "
    "WHERE type = 'headrace.trajectory.started.v1')"
)
"""The start events of trajectories; an event that was written twice has two rows."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A named query."""

    name: str
    """Name in the JSON."""
    about: str
    """What it shows, in a sentence."""
    sql: str
    """The query."""
    window_s: float = 0.0
    """Length of the time window before now that it shows, in seconds: its result may change while the tables do not."""


def read_panel(client: "Client", panel: Panel, run: str) -> Columns:
    """Query the columns of ``panel`` for ``run``. Raises the client's ``ClickHouseError``."""
    result = client.query(panel.sql, parameters={"run": run})
    return to_columns(result.column_names, result.result_columns)


def to_columns(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Columns:
    """Returns a result in JSON's types: values that are not finite, such as the mean of no rows, become ``None``.

    A column of maps becomes one column per key, ``metrics.loss``, with ``None`` for rows that lack the key.
    """
    plain: Columns = {}
    for name, column in zip(names, columns or [[] for _ in names], strict=True):
        if column and isinstance(column[0], Mapping):
            keys = dict.fromkeys(key for row in column for key in row)
            plain |= {f"{name}.{key}": _finite(row.get(key) for row in column) for key in keys}
        else:
            plain[name] = _finite(column)
    return plain


def _finite(values: Iterable[Any]) -> list[Any]:
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]


def default_run(runs: Mapping[str, Sequence[Any]]) -> str:
    """Returns the most recently active run; the empty text, which means all runs, if there is none."""
    return str(runs["run"][0]) if runs.get("run") else ""
