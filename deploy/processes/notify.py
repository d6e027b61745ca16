"""The notifier: delivers alerts to a webhook, Alertmanager, a mail server or the log."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.notifying.notifier import NotifyConfig


def notify_config(settings: "Settings") -> "NotifyConfig":
    """Returns the notifier's configuration."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.notifying.notifier import NotifyConfig

    return configured(
        settings, "notify", NotifyConfig, bootstrap=settings.required_address("kafka"), member=settings.member
    )


def _run(settings: "Settings") -> int:
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.notifying.notifier import run_notifier

    return until_stopped(partial(run_notifier, notify_config(settings)))


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS

    return Flow((ALERTS,))


NOTIFY = Process(
    "notify",
    "alerts → webhook, Alertmanager, e-mail",
    flow=_flow,
    run=_run,
    settings=("kafka",),
    needs=("kafka",),
    wanted=lambda settings: bool(settings.options.get("notify")),
    configuration="headrace.streams.notifying.notifier:NotifyConfig",
    configure=notify_config,
)
