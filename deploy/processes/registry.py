"""All processes. To add a process, add its value here: the stack, ``headrace worker``, ``headrace settings``, the
status, option checks and help texts are derived from it.
"""

from headrace.deploy.processes.archive import ARCHIVE
from headrace.deploy.processes.clickhouse import CLICKHOUSE
from headrace.deploy.processes.dashboard import DASHBOARD
from headrace.deploy.processes.follower import FOLLOWER
from headrace.deploy.processes.gateway import GATEWAY
from headrace.deploy.processes.kafka import KAFKA
from headrace.deploy.processes.notify import NOTIFY
from headrace.deploy.processes.oncall import ONCALL
from headrace.deploy.processes.otlp import OTLP
from headrace.deploy.processes.process import Process
from headrace.deploy.processes.sink import SINK
from headrace.deploy.processes.streams import STREAM_PROCESSES
from headrace.deploy.processes.traces import TRACES
from headrace.deploy.processes.trainer import TRAINER
from headrace.deploy.processes.vllm import VLLM

PROCESSES: tuple[Process, ...] = (
    KAFKA, CLICKHOUSE, VLLM, GATEWAY, OTLP,
    *STREAM_PROCESSES,
    SINK, ARCHIVE, TRACES, ONCALL, NOTIFY, TRAINER, FOLLOWER, DASHBOARD,
)  # fmt: skip
"""In topological order: each process comes after those that it needs."""


def stack_processes() -> tuple[Process, ...]:
    """Returns the processes that ``headrace up`` starts, or that an external address replaces."""
    return tuple(process for process in PROCESSES if process.in_stack)


def workers() -> dict[str, Process]:
    """Returns the processes that ``headrace worker`` runs, by name."""
    return {process.name: process for process in PROCESSES if process.run is not None}


def configurations() -> dict[str, str]:
    """Returns the options class (``module:Class``) of each process that has one, by name."""
    return {process.name: process.configuration for process in PROCESSES if process.configuration is not None}
