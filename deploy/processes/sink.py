"""The sink: writes every topic that has a table to ClickHouse."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.streams.clickhouse.sink_config import SinkConfig


def sink_config(settings: "Settings") -> "SinkConfig":
    """Returns the sink's configuration."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.clickhouse.sink_config import SinkConfig

    return configured(
        settings,
        "sink",
        SinkConfig,
        bootstrap=settings.required_address("kafka"),
        clickhouse_url=settings.required_address("clickhouse"),
        clickhouse_secrets=settings.clickhouse_secrets,
        member=settings.member,
    )


def _run(settings: "Settings") -> int:
    from headrace.deploy.processes.telemetry import observe_lag_of
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.streams.clickhouse.sink import run_sink
    from headrace.streams.clickhouse.without_pandas import hide_pandas_from_pyarrow
    from headrace.streams.memory import fit_memory_to_inserts

    config = sink_config(settings)
    observe_lag_of("sink", settings, [config.group])
    hide_pandas_from_pyarrow()
    fit_memory_to_inserts()
    return until_stopped(partial(run_sink, config))


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS, DEAD_LETTERS
    from headrace.streams.clickhouse.tables import STORED_TOPICS

    return Flow(STORED_TOPICS, (DEAD_LETTERS, ALERTS))


SINK = Process(
    "sink",
    "every topic → ClickHouse",
    flow=_flow,
    feeds=(("clickhouse", "inserts"),),
    run=_run,
    settings=("kafka", "clickhouse"),
    needs=("kafka", "clickhouse"),
    metrics=True,
    configuration="headrace.streams.clickhouse.sink_config:SinkConfig",
    configure=sink_config,
    memory_mb=300,
    native=True,
)
