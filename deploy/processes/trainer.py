"""The trainer, as the stack and ``headrace worker trainer`` run it: without a file of settings."""

from typing import TYPE_CHECKING

from headrace.deploy.processes.model_and_key import check_base_model, make_signing_key
from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.trainer.config import TrainerConfig


def _run(settings: "Settings") -> int:
    from headrace.deploy.processes.train import train

    return train(settings)


def _configure(settings: "Settings") -> "TrainerConfig":
    from headrace.deploy.processes.train import trainer_config

    return trainer_config(settings)


def _flow() -> Flow:
    from headrace.deploy.processes.train import trainer_flow

    return trainer_flow()


TRAINER = Process(
    "trainer",
    "training → steps, weights",
    flow=_flow,
    run=_run,
    settings=("kafka", "store_url"),
    needs=("kafka",),
    check=check_base_model,
    prepare=make_signing_key,
    metrics=True,
    configuration="headrace.trainer.config:TrainerConfig",
    configure=_configure,
    memory_mb=900,
    extra="trainer",
)
