"""Metrics by the names that dashboards will ask for."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace.streams.lag import Lag
from headrace.streams.metrics import METER, observe_lag


def read(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, object], float]]]:
    """Every metric: name → (labels, value)."""
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_lag_is_read_anew_at_every_look() -> None:
    reader = InMemoryMetricReader()
    latest = [Lag("assemble", "events", 2, 1840, 0.5)]
    observe_lag(lambda: latest, MeterProvider([reader]).get_meter(METER))
    labels = {"group": "assemble", "topic": "events", "partition": 2}
    assert read(reader) == {"headrace.consumer.lag": [(labels, 1840)], "headrace.consumer.lag.time": [(labels, 0.5)]}
    latest[:] = []
    assert not any(read(reader).values())
