"""The worker processes: one part each, started from settings alone, ended by SIGTERM.

A worker is what the local stack, a systemd unit or a Kubernetes container runs. It says that it serves by sd_notify,
finishes and commits what it has in hand when it is asked to end, and says why in its log when it cannot go on.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from headrace.agents.client_log import ration_client_log
from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.log_format import log_to_stderr
from headrace.deploy.processes.assembler_memory import fit_memory_to_assembler
from headrace.deploy.processes.part_options import (
    assembler_config,
    check_options,
    follower_config,
    needed,
    sink_config,
    traces_config,
    workers_config,
)
from headrace.deploy.processes.ranks import name_of_rank
from headrace.deploy.processes.telemetry import observe_lag_of, start_telemetry
from headrace.deploy.processes.train import train
from headrace.deploy.system.data_folder import keep_files_private, make_folder
from headrace.deploy.system.notify import notify_ready
from headrace.deploy.system.ports import HOST
from headrace.deploy.system.until_stopped import until_stopped
from headrace.schemas.operator_error import OperatorError

_EXTRAS = {
    "faust": "streams", "clickhouse_connect": "streams", "msgspec": "streams",
    "torch": "trainer", "transformers": "trainer", "safetensors": "trainer", "obstore": "trainer", "numpy": "trainer",
    "cryptography": "trainer", "rich": "trainer", "tensorboard": "tensorboard", "wandb": "wandb",
    "prometheus_client": "streams", "opentelemetry": "streams",
    "chdb": "local", "starlette": "local", "uvicorn": "local",
}  # fmt: skip
"""Which extra brings a module."""


def run_worker(name: str, settings: Settings) -> int:
    """Run the worker called ``name`` until it is asked to end; returns its exit status.

    Raises :class:`StackError` where a setting or an installed extra is missing.
    """
    check_options(settings, ())  # a part's own are looked at when it makes its configuration
    return run_process(name, settings, partial(WORKERS[name], settings))


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


def _assembler(settings: Settings) -> tuple[str, Callable[..., Awaitable[None]]]:
    """The assembler's consumer group, and the assembler, ready to run."""
    from headrace.streams.assembly.assembler import run_assembler
    from headrace.streams.metrics import observe_assembler

    config = assembler_config(settings)
    return config.group, partial(run_assembler, config, watch=observe_assembler)


def _assemble(settings: Settings) -> int:
    group, run = _assembler(settings)
    observe_lag_of("assemble", settings, [group])
    fit_memory_to_assembler()
    return until_stopped(run)


def _workers(settings: Settings, name: str = "workers") -> int:
    """Score and group or, by name, one of them, or both with the assembler (``streams``)."""
    from headrace.streams.workers import consumer_group, run_workers

    config = workers_config(settings, name)
    groups, beside = [*map(consumer_group, config.processors)], []
    if name == "streams":
        group, assembler = _assembler(settings)
        groups.append(group)
        beside.append(assembler)
    observe_lag_of(name, settings, groups)
    status: int = run_workers(config, ready=notify_ready, beside=beside)
    return status


def _sink(settings: Settings) -> int:
    from headrace.streams.clickhouse.sink import run_sink

    config = sink_config(settings)
    observe_lag_of("sink", settings, [config.group])
    return until_stopped(partial(run_sink, config))


def _traces(settings: Settings) -> int:
    from headrace.streams.trace_exporter import run_traces

    return until_stopped(partial(run_traces, traces_config(settings)))


def _follower(settings: Settings) -> int:
    from headrace.trainer.follower.follower import run_follower

    return until_stopped(partial(run_follower, follower_config(settings)))


def _clickhouse(settings: Settings) -> int:
    from headrace.deploy.clickhouse.server import serve_clickhouse

    port = _needed_port(settings, "clickhouse_port")
    make_folder(settings.data)
    secrets = settings.secrets_of_embedded
    serve_clickhouse(settings.data / "clickhouse", secrets=secrets, host=HOST, port=port, ready=notify_ready)
    return 0


def _dashboard(settings: Settings) -> int:
    from headrace.deploy.dashboard.server import serve_dashboard

    port = _needed_port(settings, "dashboard_port")
    url, secrets = needed(settings, "clickhouse"), settings.clickhouse_secrets
    serve_dashboard(url, secrets=secrets, host=HOST, port=port, ready=notify_ready)
    return 0


WORKERS: Mapping[str, Callable[[Settings], int]] = {
    "assemble": _assemble,
    "workers": _workers,
    "score": partial(_workers, name="score"),
    "group": partial(_workers, name="group"),
    "streams": partial(_workers, name="streams"),
    "sink": _sink,
    "traces": _traces,
    "trainer": train,
    "follower": _follower,
    "clickhouse": _clickhouse,
    "dashboard": _dashboard,
}
"""Every worker by name."""


def _needed_port(settings: Settings, name: str) -> int:
    port: int | None = getattr(settings, name)
    if port is None:
        raise StackError(f"A worker needs a port to listen on: set {PREFIX}{name.upper()}.")
    return port
