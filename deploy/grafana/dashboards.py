"""A page of headrace's dashboard as a dashboard of Grafana, from the same panels.

    Form.LINE over versions or steps   trend          Form.LINE over time   time series
    Form.BARS, DISTRIBUTION            bar chart      Form.TABLE            table
    Form.FIGURES                       stat           Form.DATA          left out: they fill our own controls

Intervals, counts of observations and fading are not drawn there: Grafana's panels have no form for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.deploy.dashboard.pages import Page
from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit
from headrace.deploy.grafana.datasource import REFERENCE, TABLE, TIME_SERIES, query
from headrace.deploy.grafana.queries import columns_of, grafana_sql

SCHEMA_VERSION = 41
"""Version of the dashboards' schema: Grafana 12; later ones migrate it."""

UNITS: Mapping[Unit, str] = {
    Unit.COUNT: "short",
    Unit.NUMBER: "none",
    Unit.REWARD: "none",
    Unit.SHARE: "percentunit",
    Unit.TOKENS: "short",
    Unit.SECONDS: "s",
    Unit.TIME: "dateTimeAsIso",
    Unit.VERSION: "none",
    Unit.STEP: "none",
    Unit.TEXT: "string",
}
"""Our units → ids of Grafana's."""

_WIDTH, _HEIGHT = 24, 9
_RUNS = """\
SELECT '' AS value, 'all runs' AS text
UNION ALL
SELECT run AS value, run AS text FROM (
    SELECT run, max(ended_at) AS last FROM rewards_latest WHERE run != '' GROUP BY run ORDER BY last DESC LIMIT 500
)"""
"""Values and names of the variable `run`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is a dashboard of Grafana, too."""

    path: str
    """The page's path."""
    uid: str
    """The dashboard's uid, which never changes: links to it and its history stay."""
    title: str
    """The dashboard's title."""


SHOWN: tuple[Shown, ...] = (
    Shown("", "headrace-overview", "headrace: overview"),
    Shown("/trainer", "headrace-trainer", "headrace: trainer"),
    Shown("/fleet", "headrace-fleet", "headrace: fleet"),
    Shown("/watch", "headrace-watch", "headrace: watch"),
)
"""Pages that are dashboards. The others choose what they show by more than a run."""


def dashboard(shown: Shown, page: Page) -> dict[str, Any]:
    """Returns the dashboard of ``page``, as Grafana's file has it."""
    # Only the run is a variable; slices are empty, which restricts nothing.
    fixed = {each.name: each.default for each in page.parameters if each.name != "run"}
    panels: list[dict[str, Any]] = []
    x = y = 0
    section = ""
    for panel in page.panels:
        if panel.form is Form.DATA or (panel.form is not Form.FIGURES and not panel.values):
            continue
        if panel.section != section:
            section, y, x = panel.section, y + (_HEIGHT if x else 0), 0
            panels.append(_row(section, len(panels) + 1, y))
            y += 1
        width = _WIDTH if panel.wide or panel.form is Form.FIGURES else _WIDTH // 2
        height = 4 if panel.form is Form.FIGURES else _HEIGHT
        if x + width > _WIDTH:
            x, y = 0, y + _HEIGHT
        panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": width, "h": height}, fixed))
        x, y = (0, y + height) if x + width == _WIDTH else (x + width, y)
    return {
        "uid": shown.uid,
        "title": shown.title,
        "tags": ["headrace"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "annotations": {"list": []},
        "templating": {"list": [_run_variable(one_run=page.one_run)]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: Mapping[str, int], fixed: Mapping[str, str]) -> dict[str, Any]:
    over_time = panel.x is not None and panel.x.unit is Unit.TIME
    kind = TIME_SERIES if over_time and panel.form in (Form.LINE, Form.STEPS) else TABLE
    return {
        "id": number,
        "type": _type(panel),
        "title": panel.heading,
        "description": panel.about,
        "gridPos": dict(place),
        "datasource": REFERENCE,
        "targets": [query(grafana_sql(panel, fixed), kind)],
        "fieldConfig": _fields(panel),
        "options": _options(panel),
        "transformations": _transformations(panel),
    }


def _type(panel: Panel) -> str:
    match panel.form:
        case Form.FIGURES:
            return "stat"
        case Form.LINE | Form.STEPS:
            return "timeseries" if panel.x is not None and panel.x.unit is Unit.TIME else "trend"
        case Form.BARS | Form.DISTRIBUTION:
            return "barchart"
        case _:
            return "table"


def _fields(panel: Panel) -> dict[str, Any]:
    """Returns names and units of the columns. Where series are columns, all have the unit of the value."""
    custom: dict[str, Any] = {}
    if panel.form in (Form.LINE, Form.STEPS):
        custom = {
            "lineInterpolation": "stepAfter" if panel.form is Form.STEPS else "linear",
            "showPoints": "auto",
            "spanNulls": True,
        }
    elif panel.form in (Form.BARS, Form.DISTRIBUTION):
        custom = {"stacking": {"mode": "normal" if panel.form is Form.BARS else "none", "group": "A"}}
    unit = UNITS[panel.values[0].unit] if panel.values else "none"
    defaults = {"unit": unit, "custom": custom} if panel.form is not Form.TABLE else {"custom": custom}
    # Columns of series are made by Grafana; the axis of a bar chart has its name from the query.
    axes = [] if panel.series and panel.form is not Form.TABLE else list(panel.values)
    if axes and panel.x is not None and panel.form in (Form.LINE, Form.STEPS):
        axes.insert(0, panel.x)
    return {"defaults": defaults, "overrides": [_override(axis) for axis in axes]}


def _override(axis: Axis) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": axis.column},
        "properties": [
            {"id": "displayName", "value": axis.label},
            {"id": "unit", "value": UNITS[axis.unit]},
        ],
    }


def x_field(panel: Panel) -> str:
    """Returns the name of the horizontal axis's column in the result of the panel's transformations."""
    assert panel.x is not None
    name = panel.x.label if panel.form in (Form.BARS, Form.DISTRIBUTION) else panel.x.column
    return f"{name}\\{panel.series}" if panel.series else name


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    tooltip = {"mode": "multi", "sort": "none"}
    match _type(panel):
        case "stat":
            reduced = {"values": False, "calcs": ["lastNotNull"], "fields": "/.*/"}
            return {
                "reduceOptions": reduced,
                "colorMode": "none",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "value_and_name",
                "percentChangeColorMode": "standard",
                "showPercentChange": False,
                "wideLayout": True,
            }
        case "trend":
            return {"legend": legend, "tooltip": tooltip, "xField": x_field(panel)}
        case "timeseries":
            return {"legend": legend, "tooltip": tooltip}
        case "barchart":
            stacking = "normal" if panel.form is Form.BARS else "none"
            return {
                "legend": legend,
                "tooltip": tooltip,
                "xField": x_field(panel),
                "stacking": stacking,
                "orientation": "auto",
                "showValue": "never",
                "barWidth": 0.97,
                "groupWidth": 0.7,
                "fullHighlight": False,
                "xTickLabelMaxLength": 0,
                "xTickLabelRotation": 0,
            }
        case _:
            return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}


def _transformations(panel: Panel) -> Sequence[dict[str, Any]]:
    """Returns what makes a column of each series, for the panels that do not do it themselves."""
    if not panel.series or _type(panel) not in ("trend", "barchart"):
        return []
    row, _, value = columns_of(panel)[:3]
    assert panel.x is not None
    if _type(panel) == "barchart":
        row = panel.x.label
    options = {"columnField": panel.series, "rowField": row, "valueField": value, "emptyValue": "null"}
    return [{"id": "groupingToMatrix", "options": options}]


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}


def _run_variable(*, one_run: bool) -> dict[str, Any]:
    asked = _RUNS.partition("UNION ALL\n")[2] if one_run else _RUNS
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": REFERENCE,
        "query": {**query(asked), "refId": "run"},
        "refresh": 2,
        "sort": 0,
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "options": [],
    }
