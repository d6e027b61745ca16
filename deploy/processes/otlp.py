"""The OTLP receiver: spans of instrumented agents → the log."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.agents.otel.config import OtlpConfig
    from headrace.deploy.configuration.settings import Settings


def otlp_config(settings: "Settings") -> "OtlpConfig":
    """Returns the receiver's configuration."""
    from headrace.agents.otel.config import OtlpConfig
    from headrace.deploy.configuration.settings import configured

    return configured(
        settings,
        "otlp",
        OtlpConfig,
        bootstrap=settings.required_address("kafka"),
        port=settings.required_port("otlp_port"),
        folder=settings.data / "otlp",
    )


def _run(settings: "Settings") -> int:
    from headrace.agents.otel.receiver import run_receiver
    from headrace.deploy.system.until_stopped import until_stopped

    return until_stopped(partial(run_receiver, otlp_config(settings)))


def _flow() -> Flow:
    from headrace.schemas.topics import EVENTS

    return Flow((), (EVENTS,))


OTLP = Process(
    "otlp",
    "OpenTelemetry spans of agents → the log",
    flow=_flow,
    run=_run,
    settings=("kafka", "otlp_port"),
    needs=("kafka",),
    in_stack=False,
    ports=("otlp_port",),
    url=f"http://{HOST}:{{port}}",
    configuration="headrace.agents.otel.config:OtlpConfig",
    configure=otlp_config,
)
