"""A panel: one named query, its answer as columns. All of them plain ClickHouse that anybody can run.

Every query takes the parameter ``run``; the empty text means every run. Results are columns: name → list.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Columns: TypeAlias = dict[str, list[Any]]

OF_RUN = "({run:String} = '' OR run = {run:String})"
"""Whether a row is of the run that is looked at."""

STARTS = (
    "(SELECT trajectory_id, started_run AS run, started_group_id AS group_id, payload FROM events "
    "WHERE type = 'headrace.trajectory.started.v1')"
)
"""The starts of trajectories: a row each, and another for each time one was written."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A named query."""

    name: str
    """Name in the JSON."""
    about: str
    """What it answers, in a sentence."""
    sql: str
    """The query."""
    window_s: float = 0.0
    """Seconds before now that it looks at: for so long it changes though its tables do not."""


def read_panel(client: "Client", panel: Panel, run: str) -> Columns:
    """The columns of ``panel`` for ``run``. Raises the client's ``ClickHouseError``."""
    result = client.query(panel.sql, parameters={"run": run})
    return to_columns(result.column_names, result.result_columns)


def to_columns(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Columns:
    """A result as JSON can carry it: what is not a number, as the mean of nothing, becomes ``None``.

    A column of maps becomes one for each of their keys, ``metrics.loss``, with ``None`` where a row has no such key.
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
    """The run that moved last; the empty text, which means all, where there is none."""
    return str(runs["run"][0]) if runs.get("run") else ""
