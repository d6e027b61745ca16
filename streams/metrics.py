"""What the stream processors say of themselves, through OpenTelemetry. Every name is declared here, once.

Instruments are observed: a processor keeps plain numbers, and they are read when somebody asks. Without a reader
(``deploy/telemetry.py`` sets one up) nothing is ever read, and nothing costs anything. In Prometheus the names have
underscores and units: ``headrace_consumer_lag_time_seconds``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from headrace.streams.lag import Lag

METER = "headrace.streams"

Labels: TypeAlias = Mapping[str, str | int]
Samples: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]
"""Values as they are now, each with its labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A name with its unit (UCUM) and the sentence that ``/metrics`` shows beside it."""

    name: str
    """Dotted, as OpenTelemetry has it."""
    unit: str
    """``s``, ``ms``, ``By``, or ``{thing}``."""
    about: str
    """What it counts."""
    counts: bool = False
    """Whether it only grows (a counter) or comes and goes (a gauge)."""


LAG = Metric("headrace.consumer.lag", "{record}", "Records between a consumer group's place and the partition's end.")
LAG_TIME = Metric("headrace.consumer.lag.time", "s", "Age of the next record that a consumer group has not taken.")
"""Both by ``group``, ``topic`` and ``partition``."""


def observe(metric: Metric, samples: Samples, meter: Meter | None = None) -> None:
    """Have ``metric`` read from ``samples`` whenever it is asked for."""

    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for value, labels in samples()]

    meter = meter or get_meter(METER)
    make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
    make(metric.name, callbacks=[read], unit=metric.unit, description=metric.about)


def observe_lag(latest: Callable[[], Sequence[Lag]], meter: Meter | None = None) -> None:
    """Lag of consumer groups, from the measurement that ``latest`` returns."""

    def labels(lag: Lag) -> Labels:
        return {"group": lag.group, "topic": lag.topic, "partition": lag.partition}

    observe(LAG, lambda: [(lag.records, labels(lag)) for lag in latest()], meter)
    observe(LAG_TIME, lambda: [(lag.seconds, labels(lag)) for lag in latest()], meter)
