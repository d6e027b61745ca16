"""The worker processes: one part each, started from settings alone, ended by SIGTERM.

A worker is what the local stack, a systemd unit or a Kubernetes container runs. It signals readiness by sd_notify,
finishes and commits its batch when it is asked to end, and logs why where it cannot go on.
"""

from collections.abc import Callable
from functools import partial

from headrace.agents.client_log import ration_client_log
from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.log_format import log_to_stderr
from headrace.deploy.processes.options import check_options
from headrace.deploy.processes.process import Process
from headrace.deploy.processes.ranks import name_of_rank
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.processes.telemetry import start_telemetry
from headrace.deploy.system.data_folder import keep_files_private
from headrace.schemas.operator_error import OperatorError

_EXTRAS = {
    "faust": "streams", "clickhouse_connect": "streams", "msgspec": "streams",
    "torch": "trainer", "transformers": "trainer", "safetensors": "trainer", "obstore": "trainer", "numpy": "trainer",
    "cryptography": "trainer", "rich": "trainer", "tensorboard": "tensorboard", "wandb": "wandb",
    "prometheus_client": "streams", "opentelemetry": "streams",
    "chdb": "local", "starlette": "local", "uvicorn": "local",
}  # fmt: skip
"""Which extra brings a module."""


def run_worker(process: Process, settings: Settings) -> int:
    """Run ``process``, which must have a ``run``, until it is asked to end; returns its exit status.

    Raises :class:`StackError` where a setting or an installed extra is missing.
    """
    assert process.run is not None
    check_options(settings, stack_processes(), ())  # its own are checked when it makes its configuration
    return run_process(process.name, settings, partial(process.run, settings))


def run_process(name: str, settings: Settings, run: Callable[[], int]) -> int:
    """``run()`` as the process of the part called ``name``: with its log and its metrics. Returns its exit status.

    Raises :class:`StackError` where a setting or an installed extra is missing, Kafka was lost, or an operator must
    mend something.
    """
    keep_files_private()
    log_to_stderr(settings.log_level)
    ration_client_log(everywhere=True)
    try:
        start_telemetry(name_of_rank(name), settings)  # a port can be taken once
        return run()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        raise StackError(f"{name} needs {error.name}: install headrace[{extra}].") from error
    except Exception as error:
        if (sentence := sentence_of(error, name, settings.kafka)) is None:
            raise
        raise StackError(sentence) from error


def sentence_of(error: Exception, name: str, kafka: str | None) -> str | None:
    """What an operator reads of the ``error`` that ended the process called ``name``, which reads the broker at
    ``kafka``; ``None`` where it is a fault of ours, whose traceback is wanted.
    """
    from aiokafka.errors import KafkaError

    if refused := _made_of(error, OperatorError):
        return f"{name}: {refused}"
    if lost := _made_of(error, KafkaError):
        return (
            f"{name} lost the Kafka at {kafka} (setting {PREFIX}KAFKA): {lost!r}. Nothing is lost: started again, as "
            "`headrace up` and Kubernetes do, it goes on from its last commit."
        )
    return None


def _made_of(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error of this ``kind`` that ``error`` is, or consists of; ``None`` where it is something else."""
    if isinstance(error, BaseExceptionGroup):
        found = [_made_of(each, kind) for each in error.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, kind) else None
