"""A panel's query as Grafana asks it: variables in place of parameters, and the dashboard's time where it has one.

{run:String}                             ${run:sqlstring}, a quoted text
time > now64(3) - INTERVAL 10 MINUTE     $__timeFilter_ms(time), by which the plugin puts the chosen range
"""

import re
from collections.abc import Mapping

from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit

_PARAMETER = re.compile(r"\{(\w+):(String|UInt\d+)\}")
_WINDOW = re.compile(r"\btime > now64\(3\) - INTERVAL \d+ (?:SECOND|MINUTE|HOUR|DAY)\b")


def columns_of(panel: Panel) -> tuple[str, ...]:
    """Returns the columns of ``panel`` that are drawn, the horizontal axis first."""
    names = [panel.x.column] if panel.x else []
    return tuple(dict.fromkeys([*names, *([panel.series] if panel.series else []), *(v.column for v in panel.values)]))


def grafana_sql(panel: Panel, fixed: Mapping[str, str]) -> str:
    """Returns the query of ``panel`` with the columns that are drawn, rows in the order of the axis.

    Parameters in ``fixed`` get a constant value, the others are variables of the dashboard. A time in milliseconds
    becomes a date.
    """

    def argument(found: re.Match[str]) -> str:
        name, kind = found.groups()
        value = fixed.get(name)
        if kind != "String":
            return value if value is not None else f"${{{name}}}"
        return _quoted(value) if value is not None else f"${{{name}:sqlstring}}"

    inner = _PARAMETER.sub(argument, panel.sql.strip("\n"))
    if panel.x is not None and panel.x.unit is Unit.TIME:
        inner = _WINDOW.sub("$__timeFilter_ms(time)", inner)
    axes = {axis.column: axis for axis in (panel.x, *panel.values) if axis}
    chosen = ", ".join(_column(name, axes.get(name), panel) for name in columns_of(panel))
    # A table keeps the order of its query; a chart needs rising x, while the pages' queries return the newest first.
    order = f"\nWHERE `{panel.x.column}` IS NOT NULL\nORDER BY `{panel.x.column}`" if panel.x else ""
    return f"SELECT {chosen}\nFROM (\n{inner}\n){order}"


def _column(name: str, axis: Axis | None, panel: Panel) -> str:
    if axis is not None and axis.unit is Unit.TIME:
        return f"fromUnixTimestamp64Milli(toInt64(`{name}`)) AS `{name}`"
    if axis is not None and axis is panel.x and panel.form in (Form.BARS, Form.DISTRIBUTION):
        return f"toString(`{name}`) AS `{axis.label}`"  # a bar chart takes text
    return f"`{name}`"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
