"""Progress through OpenTelemetry: every metric of a step as ``headrace.trainer.…``, and the trainer's current state.

Instruments are read at each collection. In Prometheus the names have underscores, and seconds have their unit:
``headrace_trainer_effective_sample_size``, ``headrace_trainer_wait_seconds``.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from headrace.trainer.learning.metric_registry import METRICS, Metric
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress

METER = "headrace.trainer"

GaugeSamples = Callable[[], Iterable[tuple[float, Mapping[str, str]]]]


def instrument_name(metric: Metric) -> str:
    """Returns a metric's name in OpenTelemetry, without the prefix of seconds, which are the instrument's unit."""
    return f"headrace.trainer.{metric.name.removesuffix('*').removeprefix('seconds_').rstrip('_')}"


def observe_progress(progress: Progress, meter: Meter | None = None) -> None:
    """Register instruments that read ``progress`` at each collection, without metrics that the newest step lacks."""
    meter = meter or get_meter(METER)
    for metric in METRICS.values():
        unit = "" if metric.unit == "1" else metric.unit
        _gauge(meter, instrument_name(metric), unit, metric.about, partial(_values, progress, metric))
    for name, about, unit, value in (
        ("version", "Newest policy version announced.", "{version}", lambda: progress.version),
        ("groups", "Groups gathered for the current step.", "{group}", lambda: progress.groups),
        ("groups.wanted", "Groups that a step needs.", "{group}", lambda: progress.wanted),
        (
            "outage",
            "Seconds for which the disk, object store or Kafka has been unavailable; 0: none is.",
            "s",
            lambda: progress.outage_s,
        ),
    ):
        _gauge(meter, f"headrace.trainer.{name}", unit, about, partial(_alone, value))
    phases = "Seconds in the current phase, by phase; 0 for the others."
    _gauge(meter, "headrace.trainer.phase", "s", phases, partial(_phases, progress))
    meter.create_observable_counter(
        "headrace.trainer.steps",
        [lambda _: [Observation(progress.steps)]],
        "{step}",
        "Steps announced since the process started.",
    )


def _alone(value: Callable[[], float]) -> Iterable[tuple[float, Mapping[str, str]]]:
    return [(value(), {})]


def _phases(progress: Progress) -> Iterable[tuple[float, Mapping[str, str]]]:
    return [(progress.since_s if phase == progress.phase else 0.0, {"phase": phase.value}) for phase in Phase]


def _values(progress: Progress, metric: Metric) -> Iterable[tuple[float, Mapping[str, str]]]:
    if not metric.name.endswith("*"):
        return [(progress.metrics[metric.name], {})] if metric.name in progress.metrics else []
    beginning = metric.name.removesuffix("*")
    return [
        (value, {"of": name.removeprefix(beginning)})
        for name, value in progress.metrics.items()
        if name.startswith(beginning) and name not in METRICS
    ]


def _gauge(meter: Meter, name: str, unit: str, about: str, samples: GaugeSamples) -> None:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for value, labels in samples()]

    meter.create_observable_gauge(name, [read], unit, about)
