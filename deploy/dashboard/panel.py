"""A panel: a named query with its result as columns, and how the result is drawn.

The queries are plain ClickHouse SQL that any client can run, with parameters: ``{run:String}`` and the others of
``selection``; an empty text restricts nothing. Results are columns: name → list. The pages draw panels from these
specifications alone, and so can any other client of them::

    Panel("staleness", "Versions between …", "SELECT step, median, largest FROM …", form=Form.LINE,
          x=Axis("step", "Step", Unit.STEP), values=(Axis("median", "Median", Unit.COUNT), …))
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Columns: TypeAlias = dict[str, list[Any]]

OF_RUN = "({run:String} = '' OR run = {run:String})"
"""Condition that a row belongs to the selected run."""


def recent(minutes: int, clock: str = "time") -> str:
    """Return the condition that the column ``clock`` is of the last ``minutes`` minutes, and not more than one minute
    ahead, as from a clock that is wrong."""
    return f"{clock} > now64(3) - INTERVAL {minutes} MINUTE AND {clock} < now64(3) + INTERVAL 1 MINUTE"


class Form(StrEnum):
    """How a panel is drawn."""

    FIGURES = "figures"
    """One row, whose columns the page shows as figures."""
    LINE = "line"
    """Lines over ``x``; with ``low`` and ``high``, an interval around each."""
    STEPS = "steps"
    """Lines over ``x`` that keep their value until the next one."""
    BARS = "bars"
    """Bars over ``x``, the series stacked."""
    DISTRIBUTION = "distribution"
    """A histogram: ``x`` is the lower bound of a bin, the value a share of its series."""
    TABLE = "table"
    """Rows with the columns ``values``."""
    DATA = "data"
    """Rows that the page's own script uses; not drawn as a card."""


class Unit(StrEnum):
    """The unit of a column. Dashboards elsewhere need it to format values."""

    COUNT = "count"
    NUMBER = "number"
    """A number without a unit, such as a loss."""
    REWARD = "share of the largest reward"
    """The one scale of rewards on all pages: total / maximum of the reward spec, 1 for the best possible."""
    SHARE = "share"
    """From 0 to 1."""
    TOKENS = "tokens"
    SECONDS = "s"
    TIME = "ms"
    """Milliseconds since 1970, UTC."""
    VERSION = "version"
    STEP = "step"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Axis:
    """A column of the result that is drawn: an axis of a chart, or a column of a table."""

    column: str
    """Name of the column."""
    label: str
    """What it is, as the page names it."""
    unit: Unit
    """Its unit."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A named query and how its result is drawn."""

    name: str
    """Name in the JSON, and id of its card."""
    about: str
    """What it shows, in a sentence."""
    sql: str
    """The query."""
    window_s: float = 0.0
    """Length of the time window before now that it shows, in seconds: its result may change while the tables do not."""
    title: str = ""
    """Heading; if empty, the name."""
    form: Form = Form.DATA
    """How it is drawn."""
    x: Axis | None = None
    """The horizontal axis of a chart."""
    values: tuple[Axis, ...] = ()
    """What is drawn: with ``series`` one column, without it a series for each. Of a table, its columns."""
    series: str = ""
    """Column that names the series of a row."""
    facet: str = ""
    """Column for each of whose values the page draws a small chart. The names of the series begin with it and ': '."""
    low: str = ""
    """Column with the lower end of the value's 95 % interval."""
    high: str = ""
    """Column with the upper end."""
    n: str = ""
    """Column with the number of observations behind the value."""
    cuts: tuple[str, ...] = ()
    """Parameters of ``slices`` that restrict it."""
    splits: bool = False
    """Whether the parameter ``by`` splits it into a series for each slice."""
    source: str = ""
    """Panel of the same page whose result has these columns, too: the page draws them without another query."""
    section: str = ""
    """Heading under which its card stands."""
    wide: bool = False
    """Whether its card is as wide as the page."""
    empty: str = "Nothing yet."
    """What the page says in place of an empty result, with what to do; commands are in backquotes."""

    @property
    def heading(self) -> str:
        """The title of its card."""
        return self.title or self.name.replace("_", " ").capitalize()


def specification(panel: Panel) -> dict[str, Any]:
    """Returns everything of ``panel`` but its result, as JSON."""
    axis = {"column": panel.x.column, "label": panel.x.label, "unit": panel.x.unit} if panel.x else None
    return {
        "name": panel.name,
        "title": panel.heading,
        "about": panel.about,
        "sql": panel.sql,
        "form": panel.form,
        "x": axis,
        "values": [{"column": each.column, "label": each.label, "unit": each.unit} for each in panel.values],
        "series": panel.series,
        "facet": panel.facet,
        "low": panel.low,
        "high": panel.high,
        "n": panel.n,
        "cuts": list(panel.cuts),
        "splits": panel.splits,
        "source": panel.source,
        "section": panel.section,
        "wide": panel.wide,
        "empty": panel.empty,
    }


def read_panel(client: "Client", panel: Panel, parameters: Mapping[str, str]) -> Columns:
    """Query the columns of ``panel`` with ``parameters``, a value for each. Raises the client's ``ClickHouseError``."""
    result = client.query(panel.sql, parameters=dict(parameters))
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
