"""Runs a worker process: one part of the stack, configured by settings alone and stopped by SIGTERM.

The local stack, a systemd unit or a Kubernetes container runs a worker. It signals readiness by sd_notify, finishes and
commits its batch when it is stopped, and logs the reason if it cannot continue.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.agents.client_log import limit_client_log
from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.log_format import log_to_stderr
from headrace.deploy.processes.options import check_options
from headrace.deploy.processes.process import Process
from headrace.deploy.processes.ranks import name_of_rank
from headrace.deploy.processes.registry import PROCESSES
from headrace.deploy.processes.telemetry import start_telemetry
from headrace.deploy.system.data_folder import keep_files_private
from headrace.schemas.operator_error import OperatorError

_EXTRAS = {
    "faust": "streams", "clickhouse_connect": "streams", "msgspec": "gateway",
    "httptools": "gateway",
    "torch": "trainer", "transformers": "trainer", "safetensors": "trainer", "obstore": "streams", "numpy": "trainer",
    "pyarrow": "streams",
    "cryptography": "trainer", "rich": "trainer", "tensorboard": "tensorboard", "wandb": "wandb",
    "prometheus_client": "streams", "opentelemetry": "streams",
    "chdb": "local", "starlette": "local", "uvicorn": "local",
}  # fmt: skip
"""The extra of headrace that installs a module."""


def run_worker(process: Process, settings: Settings) -> int:
    """Run ``process``, which must have a ``run``, until it is stopped; returns its exit status.

    Raises :class:`StackError` if a setting or an extra is missing.
    """
    assert process.run is not None
    check_options(settings, PROCESSES, ())  # Its own options are checked when it creates its configuration.
    return run_process(process.name, settings, partial(process.run, settings))


def run_process(name: str, settings: Settings, run: Callable[[], int]) -> int:
    """Run ``run()`` as the process of the part ``name``, with logging and metrics; returns its exit status.

    Raises :class:`StackError` if a setting or an extra is missing, the connection to Kafka is lost, or an operator must
    fix something.
    """
    keep_files_private()
    log_to_stderr(settings.log_level)
    limit_client_log(everywhere=True)
    try:
        if settings.kafka is not None and settings.secures_kafka:
            from headrace.schemas.kafka.refused import check_access

            # Clients wait for a broker that is away, and so would they for one that will never accept them.
            asyncio.run(check_access(settings.kafka))
        start_telemetry(name_of_rank(name), settings)  # Only rank 0 has the part's name: its port can be bound once.
        return run()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise StackError(f"{name} needs {error.name}: install headrace[{extra}].") from error
    except Exception as error:
        if (message := operator_message(error, name, settings.kafka)) is None:
            raise
        raise StackError(message) from error


def operator_message(error: Exception, name: str, kafka: str | None) -> str | None:
    """Returns a message for an operator about the ``error`` that ended the process ``name``, which uses the broker at
    ``kafka``; ``None`` for a bug, whose traceback is needed.
    """
    from aiokafka.errors import KafkaError

    from headrace.schemas.kafka.refused import AccessRefused

    if refused := _only(error, OperatorError):
        return f"{name}: {refused}"
    if denied := _only(error, AccessRefused):
        return f"{name}: {denied.args[0]}"
    if lost := _only(error, KafkaError):
        return (
            f"{name} lost its connection to the Kafka at {kafka} (setting {PREFIX}KAFKA): {lost!r}. No data is lost: "
            "after a restart, which `headrace up` and Kubernetes do, it resumes from its last commit."
        )
    return None


def _only(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Returns ``error``, or the first error of a group, if all its errors are of this ``kind``; otherwise ``None``."""
    if isinstance(error, BaseExceptionGroup):
        found = [_only(each, kind) for each in error.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, kind) else None
