"""The worker processes: one part each, started from settings alone, ended by SIGTERM.

A worker is what the local stack, a systemd unit or a Kubernetes container runs. It says that it serves by sd_notify,
finishes and commits what it has in hand when it is asked to end, and says why in its log when it cannot go on.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

from headrace.agents.client_log import ration_client_log
from headrace.deploy.assembler_memory import fit_memory_to_assembler
from headrace.deploy.errors import StackError
from headrace.deploy.notify import notify_ready
from headrace.deploy.ports import HOST
from headrace.deploy.ranks import name_of_rank
from headrace.deploy.settings import PREFIX, Settings, configured
from headrace.deploy.telemetry import observe_lag_of, start_telemetry
from headrace.deploy.train import train
from headrace.deploy.until_stopped import until_stopped

_EXTRAS = {
    "faust": "streams", "clickhouse_connect": "streams", "msgspec": "streams",
    "torch": "trainer", "transformers": "trainer", "safetensors": "trainer", "obstore": "trainer", "numpy": "trainer",
    "rich": "trainer", "tensorboard": "tensorboard", "wandb": "wandb",
    "prometheus_client": "streams", "opentelemetry": "streams",
    "chdb": "local", "starlette": "local", "uvicorn": "local",
}  # fmt: skip
"""Which extra brings a module."""


def run_worker(name: str, settings: Settings) -> int:
    """Run the worker called ``name`` until it is asked to end; returns its exit status.

    Raises :class:`StackError` where a setting or an installed extra is missing.
    """
    return run_process(name, settings, partial(WORKERS[name], settings))


def run_process(name: str, settings: Settings, run: Callable[[], int]) -> int:
    """``run()`` as the process of the part called ``name``: with its log and its metrics. Returns its exit status.

    Raises :class:`StackError` where a setting or an installed extra is missing, or Kafka was lost.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True
    )
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
        lost = _kafka_trouble(error)
        if lost is None:
            raise
        raise StackError(
            f"{name} lost the Kafka at {settings.kafka} (setting {PREFIX}KAFKA): {lost!r}. Nothing is lost: started "
            "again, as `headrace up` and Kubernetes do, it goes on from its last commit."
        ) from error


def _kafka_trouble(error: BaseException) -> BaseException | None:
    """The client's error that ``error`` is, or consists of; ``None`` where it is something else."""
    from aiokafka.errors import KafkaError

    if isinstance(error, BaseExceptionGroup):
        found = [_kafka_trouble(each) for each in error.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, KafkaError) else None


def _assembler(settings: Settings) -> tuple[str, Callable[..., Awaitable[None]]]:
    """The assembler's consumer group, and the assembler, ready to run."""
    from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
    from headrace.streams.metrics import observe_assembler

    config = configured(
        settings, "assemble", AssemblerConfig, bootstrap=_needed(settings, "kafka"), member=settings.member
    )
    return config.group, partial(run_assembler, config, watch=observe_assembler)


def _assemble(settings: Settings) -> int:
    group, run = _assembler(settings)
    observe_lag_of("assemble", settings, [group])
    fit_memory_to_assembler()
    return until_stopped(run)


def _workers(settings: Settings, name: str = "workers") -> int:
    """Score and group or, by name, one of them, or both with the assembler (``streams``). The options of ``workers``
    hold for all of these."""
    from headrace.streams.workers import WorkersConfig, consumer_group, run_workers

    config = configured(
        settings,
        "workers",
        WorkersConfig,
        bootstrap=_needed(settings, "kafka"),
        data_dir=settings.data,
        member=settings.member,
        **({"processors": (name,)} if name in ("score", "group") else {}),
    )
    groups, beside = [*map(consumer_group, config.processors)], []
    if name == "streams":
        group, assembler = _assembler(settings)
        groups.append(group)
        beside.append(assembler)
    observe_lag_of(name, settings, groups)
    status: int = run_workers(config, ready=notify_ready, beside=beside)
    return status


def _sink(settings: Settings) -> int:
    from headrace.streams.clickhouse.sink import SinkConfig, run_sink

    config = configured(
        settings,
        "sink",
        SinkConfig,
        bootstrap=_needed(settings, "kafka"),
        clickhouse_url=_needed(settings, "clickhouse"),
        member=settings.member,
    )
    observe_lag_of("sink", settings, [config.group])
    return until_stopped(partial(run_sink, config))


def _traces(settings: Settings) -> int:
    from headrace.streams.trace_exporter import TracesConfig, run_traces

    config = configured(
        settings,
        "traces",
        TracesConfig,
        bootstrap=_needed(settings, "kafka"),
        endpoint=f"{_needed(settings, 'otlp').rstrip('/')}/v1/traces",
        member=settings.member,
    )
    return until_stopped(partial(run_traces, config))


def _follower(settings: Settings) -> int:
    from headrace.trainer.follower.follower import FollowerConfig, run_follower

    engine = _needed(settings, "vllm")
    config = configured(
        settings,
        "follower",
        FollowerConfig,
        bootstrap=_needed(settings, "kafka"),
        run=settings.run,
        engine_url=engine,
        engine=urlsplit(engine).netloc,
        cache_dir=settings.data / "weights",
    )
    return until_stopped(partial(run_follower, config))


def _clickhouse(settings: Settings) -> int:
    from headrace.deploy.clickhouse import serve_clickhouse

    port = _needed_port(settings, "clickhouse_port")
    serve_clickhouse(settings.data / "clickhouse", host=HOST, port=port, ready=notify_ready)
    return 0


def _dashboard(settings: Settings) -> int:
    from headrace.deploy.dashboard.server import serve_dashboard

    port = _needed_port(settings, "dashboard_port")
    serve_dashboard(_needed(settings, "clickhouse"), host=HOST, port=port, ready=notify_ready)
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


def _needed(settings: Settings, name: str) -> str:
    address: str | None = getattr(settings, name)
    if address is None:
        raise StackError(f"A worker needs the address of its {name}: set {PREFIX}{name.upper()}.")
    return address


def _needed_port(settings: Settings, name: str) -> int:
    port: int | None = getattr(settings, name)
    if port is None:
        raise StackError(f"A worker needs a port to listen on: set {PREFIX}{name.upper()}.")
    return port
