"""What Grafana and the ClickHouse plugin make of a query, written anew from the plugin's documentation and tests.

time > $__fromTime_ms AND run = ${run:sqlstring}
time > fromUnixTimestamp64Milli(1415792726371) AND run = 'demo'
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}")
_MACRO = re.compile(r"\$__(\w+)(?:\(([^()]*)\))?")


@dataclass(frozen=True)
class Range:
    """The time that a dashboard shows."""

    begin_ms: int
    end_ms: int
    interval_ms: int = 20_000


def with_variables(sql: str, values: Mapping[str, str]) -> str:
    """Replaces variables as Grafana does; the format ``sqlstring`` quotes, and doubles quotes in the value."""

    def value(found: re.Match[str]) -> str:
        name, form = found.groups()
        text = values[name]
        return "'" + text.replace("'", "''") + "'" if form == "sqlstring" else text

    return _VARIABLE.sub(value, sql)


def expanded(sql: str, shown: Range) -> str:
    """Replaces the plugin's macros; raises ``KeyError`` for one that it does not have."""

    def macro(found: re.Match[str]) -> str:
        name, arguments = found.groups()
        return _MACROS[name](shown, [each.strip() for each in (arguments or "").split(",") if each.strip()])

    return _MACRO.sub(macro, sql)


def _second(ms: int) -> str:
    return f"toDateTime({ms // 1000})"


def _milli(ms: int) -> str:
    return f"fromUnixTimestamp64Milli({ms})"


def _date(ms: int) -> str:
    return f"toDate('{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}')"


def _between(column: str, moment: Callable[[int], str], shown: Range) -> str:
    return f"{column} >= {moment(shown.begin_ms)} AND {column} <= {moment(shown.end_ms)}"


_MACROS: Mapping[str, Callable[[Range, list[str]], str]] = {
    "fromTime": lambda shown, _: _second(shown.begin_ms),
    "toTime": lambda shown, _: _second(shown.end_ms),
    "fromTime_ms": lambda shown, _: _milli(shown.begin_ms),
    "toTime_ms": lambda shown, _: _milli(shown.end_ms),
    "timeFilter": lambda shown, given: _between(given[0], _second, shown),
    "timeFilter_ms": lambda shown, given: _between(given[0], _milli, shown),
    "dateFilter": lambda shown, given: _between(given[0], _date, shown),
    "dateTimeFilter": lambda shown, given: (
        f"({_between(given[0], _date, shown)}) AND ({_between(given[1], _second, shown)})"
    ),
    "dt": lambda shown, given: _MACROS["dateTimeFilter"](shown, given),
    "timeInterval": lambda shown, given: (
        f"toStartOfInterval(toDateTime({given[0]}), INTERVAL {max(1, shown.interval_ms // 1000)} second)"
    ),
    "timeInterval_ms": lambda shown, given: (
        f"toStartOfInterval(toDateTime64({given[0]}, 3), INTERVAL {max(1, shown.interval_ms)} millisecond)"
    ),
    "interval_s": lambda shown, _: str(max(1, shown.interval_ms // 1000)),
}
