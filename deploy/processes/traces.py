"""The trace exporter: sends records of the log as spans to an OpenTelemetry collector."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.trace_exporter import TracesConfig


def traces_config(settings: "Settings") -> "TracesConfig":
    """Returns the exporter's configuration."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.trace_exporter import TracesConfig

    return configured(
        settings,
        "traces",
        TracesConfig,
        bootstrap=settings.required_address("kafka"),
        endpoint=f"{settings.required_address('otlp').rstrip('/')}/v1/traces",
        member=settings.member,
    )


def _run(settings: "Settings") -> int:
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.trace_exporter import run_traces

    return until_stopped(partial(run_traces, traces_config(settings)))


def _flow() -> Flow:
    from headrace.streams.trace_exporter import TOPICS

    return Flow(TOPICS)


TRACES = Process(
    "traces",
    "records → OpenTelemetry spans",
    flow=_flow,
    run=_run,
    settings=("kafka", "otlp"),
    needs=("kafka",),
    wanted=lambda settings: settings.otlp is not None,
    configuration="headrace.streams.trace_exporter:TracesConfig",
    configure=traces_config,
)
