"""Exports the metrics of a process: by a Prometheus endpoint on the loopback interface, to an OTLP collector, or both.

    HEADRACE_METRICS_PORTS='{"assemble": 9464}' headrace worker assemble      curl http://127.0.0.1:9464/metrics
    HEADRACE_OTLP=http://collector:4318        headrace worker assemble      pushed every ten seconds

Without either setting the OpenTelemetry API remains a no-op.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.system.ports import HOST, metrics_url

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from headrace.trainer.progress.progress import Progress

logger = logging.getLogger(__name__)

EXPORT_EVERY_MS = 10_000
"""Interval at which metrics are pushed to a collector, in milliseconds."""


def start_telemetry(name: str, settings: Settings) -> None:
    """Export the metrics of this process, the worker ``name``, as ``settings`` specify.

    Raises :class:`StackError` if the port is taken, ``ModuleNotFoundError`` if an exporter is not installed.
    """
    port = settings.metrics_ports.get(name)
    if port is None and settings.otlp is None:
        return
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

    readers: list[MetricReader] = []
    if port is not None:
        readers.append(_prometheus(name, port))
    if settings.otlp is not None:
        readers.append(_collector(settings.otlp))
    resource = Resource.create(
        {SERVICE_NAME: f"headrace-{name}", SERVICE_INSTANCE_ID: settings.member or "", "headrace.run": settings.run}
    )
    metrics.set_meter_provider(MeterProvider(readers, resource))
    _observe_expired()


def _observe_expired() -> None:
    """Export what the readers of this process have lost: see :mod:`headrace.schemas.kafka.expired`."""
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter

    from headrace.schemas.kafka.expired import EXPIRED

    def read(_: CallbackOptions) -> list[Observation]:
        return [
            Observation(count, {"reader": reader, "topic": topic, "partition": partition})
            for (reader, topic, partition), count in EXPIRED.by_partition.items()
        ]

    get_meter("headrace.kafka").create_observable_counter(
        "headrace.records.expired",
        callbacks=[read],
        unit="{offset}",
        description="Offsets that retention deleted before this process read them.",
    )


def observe_lag_of(name: str, settings: Settings, groups: Iterable[str]) -> None:
    """Measure the lag of the worker's consumer ``groups``, if the worker's metrics are exported."""
    if settings.kafka is None or (name not in settings.metrics_ports and settings.otlp is None):
        return
    from headrace.streams.lag import measure_in_thread
    from headrace.streams.metrics import observe_lag

    meter = measure_in_thread(settings.kafka, groups)
    observe_lag(lambda: meter.latest)


def observe_progress_of(settings: Settings, progress: "Progress") -> None:
    """Export a trainer's ``progress``, if the trainer's metrics are exported."""
    if "trainer" not in settings.metrics_ports and settings.otlp is None:
        return
    from headrace.trainer.progress.gauges import observe_progress

    observe_progress(progress)


def _prometheus(name: str, port: int) -> "MetricReader":
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    try:
        start_http_server(port, addr=HOST, registry=registry)
    except OSError as error:
        raise StackError(
            f"{name} cannot answer Prometheus on port {port} ({PREFIX}METRICS_PORTS): {error}. Choose another port."
        ) from error
    logger.info("metrics at %s", metrics_url(port))
    return reader


def _collector(endpoint: str) -> "MetricReader":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
    return PeriodicExportingMetricReader(exporter, export_interval_millis=EXPORT_EVERY_MS)
