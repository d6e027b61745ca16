"""The processes that run stream processors: the assembler, the others, one of them, or all of them in one process."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.assembly.assembler import AssemblerConfig
    from headrace.streams.workers_config import WorkersConfig


def assembler_config(settings: "Settings") -> "AssemblerConfig":
    """Returns the assembler's configuration."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.assembly.assembler import AssemblerConfig

    kafka = settings.required_address("kafka")
    return configured(settings, "assemble", AssemblerConfig, bootstrap=kafka, member=settings.member)


def workers_config(settings: "Settings", name: str = "workers") -> "WorkersConfig":
    """Returns the configuration of the process ``name``: ``workers`` (all processors but assemble), ``score``,
    ``group``, or ``streams`` (all processors). The options of ``workers`` apply to all of these."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.workers_config import WorkersConfig

    return configured(
        settings,
        "workers",
        WorkersConfig,
        bootstrap=settings.required_address("kafka"),
        data_dir=settings.data,
        member=settings.member,
        **({"processors": (name,)} if name in ("score", "group") else {}),
    )


def _assembler(settings: "Settings") -> tuple[str, Callable[..., Awaitable[None]]]:
    """Returns the assembler's consumer group and a function that runs the assembler."""
    from headrace.streams.assembly.assembler import run_assembler
    from headrace.streams.metrics import observe_assembler

    config = assembler_config(settings)
    return config.group, partial(run_assembler, config, watch=observe_assembler)


def _assemble(settings: "Settings") -> int:
    from headrace.deploy.processes.telemetry import observe_lag_of
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.memory import fit_memory_to_folds

    group, run = _assembler(settings)
    observe_lag_of("assemble", settings, [group])
    fit_memory_to_folds()
    return until_stopped(run)


def _workers(settings: "Settings", name: str = "workers") -> int:
    """Run the process ``name``: all processors but assemble, one of them, or all (``streams``)."""
    from headrace.deploy.processes.telemetry import observe_lag_of
    from headrace.deploy.system.notify import notify_ready
    from headrace.streams.memory import collect_rarely
    from headrace.streams.workers import consumer_group, run_workers

    config = workers_config(settings, name)
    groups, beside = [*map(consumer_group, config.processors)], []
    if name == "streams":
        group, assembler = _assembler(settings)
        groups.append(group)
        beside.append(assembler)
    observe_lag_of(name, settings, groups)
    collect_rarely()
    status: int = run_workers(config, ready=notify_ready, side_tasks=beside)
    return status


def _on_faust() -> tuple[str, ...]:
    """Returns the names of the processors that a ``workers`` process runs."""
    from headrace.streams.workers_config import PROCESSORS

    return PROCESSORS


def _flow(*names: str) -> Flow:
    """Returns the topics of the processors ``names`` in the topology, and the topics of dead letters and alerts."""
    from headrace.schemas.topics import ALERTS, DEAD_LETTERS
    from headrace.streams.topology import TOPOLOGY

    processors = [processor for processor in TOPOLOGY if processor.name in names]
    reads = dict.fromkeys(topic for processor in processors for topic in processor.reads)
    writes = dict.fromkeys(topic for processor in processors for topic in (*processor.writes, *processor.ticks))
    return Flow((*reads,), (*writes, DEAD_LETTERS, ALERTS))


STREAMS = Process(
    "streams",
    "all processors",
    flow=lambda: _flow("assemble", *_on_faust()),
    run=partial(_workers, name="streams"),
    settings=("kafka",),
    in_stack=False,
)
ASSEMBLE = Process(
    "assemble",
    "events → trajectories",
    flow=lambda: _flow("assemble"),
    run=_assemble,
    settings=("kafka",),
    needs=("kafka",),
    metrics=True,
    configuration="headrace.streams.assembly.assembler:AssemblerConfig",
    configure=assembler_config,
    native=True,
)
WORKERS = Process(
    "workers",
    "all processors but assemble",
    flow=lambda: _flow(*_on_faust()),
    run=_workers,
    settings=("kafka",),
    needs=("kafka",),
    metrics=True,
    configuration="headrace.streams.workers_config:WorkersConfig",
    configure=workers_config,
    memory_mb=200,
)
SCORE = Process(
    "score",
    "score only",
    flow=lambda: _flow("score"),
    run=partial(_workers, name="score"),
    settings=("kafka",),
    in_stack=False,
)
GROUP = Process(
    "group",
    "group only",
    flow=lambda: _flow("group"),
    run=partial(_workers, name="group"),
    settings=("kafka",),
    in_stack=False,
)

STREAM_PROCESSES = (STREAMS, ASSEMBLE, WORKERS, SCORE, GROUP)
"""The processes that run processors of the topology."""
