"""The measured values as metrics: one gauge for each condition, named in ``conditions.py``.

headrace_oncall_lag_seconds{group="sink"} 12.4
"""

from functools import partial

from opentelemetry.metrics import Meter

from headrace.streams.metrics import Instrument, Labels, observe
from headrace.streams.oncall.conditions import CHECKED, CONDITIONS, OPEN_MONITORS, Condition
from headrace.streams.oncall.oncall import Measured

_SUFFIXES = {"s": "_seconds"}


def prometheus_name(metric: Instrument) -> str:
    """Returns the name under which Prometheus knows a gauge of ours."""
    return metric.name.replace(".", "_") + _SUFFIXES.get(metric.unit, "")


def observe_oncall(measured: Measured, meter: Meter | None = None) -> None:
    """Register the gauges, read from ``measured``. A condition without a subject is 0 if nothing was found."""
    for condition in CONDITIONS:
        observe(condition.metric, partial(samples, condition, measured), meter)
    observe(OPEN_MONITORS, lambda: [(count, {"monitor": name}) for name, count in measured.monitors.items()], meter)
    observe(CHECKED, lambda: [(age, {"what": what}) for what, age in measured.ages().items()], meter)


def samples(condition: Condition, measured: Measured) -> list[tuple[float, Labels]]:
    """Returns the values of a condition with their labels."""
    if condition.name not in measured.values:
        return []
    found = measured.values[condition.name]
    if not condition.subject:
        return [(sum(each.value for each in found), {})]
    return [(each.value, {condition.subject: each.subject}) for each in found]
