"""On call: measures lag, dead letters, steps, rollouts, dropped events, lost feedback and the ledger, and alerts."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.oncall.conditions import Limits
    from headrace.streams.oncall.oncall import OnCallConfig


def oncall_config(settings: "Settings") -> "OnCallConfig":
    """Returns the configuration of ``oncall``; by default it watches the run of the settings."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.oncall.oncall import OnCallConfig

    return configured(
        settings,
        "oncall",
        OnCallConfig,
        bootstrap=settings.required_address("kafka"),
        cache=settings.cache / "folds",
        runs=(settings.run,),
    )


def oncall_limits(settings: "Settings") -> "Limits":
    """Returns the limits of the settings; needs no broker."""
    return oncall_config(settings.model_copy(update={"kafka": settings.kafka or "localhost:9092"})).limits


def _run(settings: "Settings") -> int:
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.oncall.metrics import observe_oncall
    from headrace.streams.oncall.oncall import run_oncall

    return until_stopped(partial(run_oncall, oncall_config(settings), watch=observe_oncall))


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS
    from headrace.streams.ledger.ledger import TOPICS_AGAINST_THE_STREAM
    from headrace.streams.oncall.tail import READS

    reads = tuple(topic for topic in dict.fromkeys((*READS, *TOPICS_AGAINST_THE_STREAM)) if topic is not ALERTS)
    return Flow((ALERTS, *reads), (ALERTS,))


ONCALL = Process(
    "oncall",
    "lag, dead letters, … → alerts",
    flow=_flow,
    run=_run,
    settings=("kafka",),
    needs=("kafka",),
    metrics=True,
    configuration="headrace.streams.oncall.oncall:OnCallConfig",
    configure=oncall_config,
    memory_mb=200,
)
