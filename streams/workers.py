"""A worker process: it runs the processors of the topology except the assembler, or some of them. Each is a Faust app
with its own consumer group and therefore lag.

A batch is decoded, folded, and committed with its offsets in one transaction per partition. After a crash an
uncommitted batch is processed again; after a Kafka outage the process retries it. A record that cannot be decoded, or
whose processing raises, goes to ``dead-letters`` and the partition continues; any other exception ends the process.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import faust

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.read_back import read_back
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_clock import check_clocks
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES, Topic
from headrace.streams.faust_shell.faust_app import SideTask, new_app, run_apps
from headrace.streams.faust_shell.worker import ProcessorWorker
from headrace.streams.metrics import observe_groups, observe_processors
from headrace.streams.processors.group import IGNORED, GroupOperator
from headrace.streams.processors.group_clock import GroupClock
from headrace.streams.rewards.judge_client import JudgeClient
from headrace.streams.rewards.registry import Rewards, parse_rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Outside
from headrace.streams.scoring.score_intake import uses_feedback
from headrace.streams.topology import TOPOLOGY
from headrace.streams.workers_config import WorkersConfig


def consumer_group(processor: str) -> str:
    """Returns the consumer group of a processor on Faust."""
    return f"headrace-{processor}"


def run_workers(config: WorkersConfig, *, ready: Callable[[], None], side_tasks: Sequence[SideTask] = ()) -> int:
    """Run the processors and ``side_tasks`` (the assembler, if one process runs everything) until SIGTERM or SIGINT.
    ``ready`` is called once all of them have their partitions.

    Returns the exit status: 0 after a signal, 1 if a processor failed (the error is logged). Raises ``TopicsError`` if
    topics are missing or feedback cannot be joined by partition, and ``WrongClockError`` if timestamps are not set by
    the broker. Owns the process's event loop and signals.
    """
    rewards = parse_rewards(config.rewards)
    processors = [processor for processor in TOPOLOGY if processor.name in config.processors]
    read = dict.fromkeys(topic for processor in processors for topic in processor.reads)
    partitions = asyncio.run(_partition_counts(config.bootstrap, dict.fromkeys([*read, TRAJECTORIES, FEEDBACK])))
    if uses_feedback(rewards) and partitions[FEEDBACK] != partitions[TRAJECTORIES]:
        raise TopicsError(
            f"{FEEDBACK.name} has {partitions[FEEDBACK]} partitions and {TRAJECTORIES.name} "
            f"{partitions[TRAJECTORIES]}: feedback is joined by partition, so both need the same number as events. "
            "Recreate the topic; its records can be copied by key."
        )
    if not config.trust_producers_time:
        asyncio.run(check_clocks(config.bootstrap, read, override="workers.trust_producers_time"))
    folder = config.data_dir / "faust"
    rules = Rules(rewards, groups=config.limits, policies=config.policies, join=config.join_limits, watch=config.watch)
    apps = []
    observed: dict[str, ProcessorWorker[Rules]] = {}
    for processor in processors:
        app = new_app(
            consumer_group(processor.name), config.bootstrap, folder, batch=config.batch, member=config.member
        )
        outside, batch = _outside(app, config, rewards) if processor.hook else (_reading(config), config.batch)
        worker = ProcessorWorker(
            app,
            config.bootstrap,
            processor,
            rules,
            partitions=partitions,
            batch=batch,
            outside=outside,
            clock=GroupClock(config.bootstrap, config.limits) if processor.name == "group" else None,
        )
        if processor.name == "group":
            observe_groups(_Groups(worker))
        observed[processor.name] = worker
        apps.append(app)
    observe_processors(observed)
    return run_apps(apps, ready=ready, side_tasks=side_tasks)


class _Groups:
    """Observed values of group, in addition to the metrics of every processor."""

    def __init__(self, worker: ProcessorWorker[Rules]) -> None:
        self._worker = worker

    @property
    def open_groups(self) -> int:
        operators = self._worker.operators.values()
        return sum(operator.groups.open for operator in operators if isinstance(operator, GroupOperator))

    @property
    def fates(self) -> Mapping[str, int]:
        return {name: count for name, count in self._worker.counts.items() if name != IGNORED}

    @property
    def ignored(self) -> int:
        return self._worker.counts[IGNORED]


def _reading(config: WorkersConfig) -> Outside:
    return Outside(partial(read_back, config.bootstrap), batch=config.batch)


def _outside(app: faust.App, config: WorkersConfig, rewards: Rewards) -> tuple[Outside, int]:
    """Returns the I/O of hooks, and the batch size of reading, which is smaller if there are judges."""
    if config.judge_url is None:
        return _reading(config), config.batch
    key = config.judge_key_file.read_text().strip() if config.judge_key_file else None
    judging = JudgeClient(config.judge_url, key=key, concurrency=config.judge_concurrency)

    async def close(*_: Any, **__: Any) -> None:
        await judging.close()

    app.on_before_shutdown.connect(close)
    batch = min(config.batch, config.judge_batch) if any(spec.judges for spec in rewards.specs) else config.batch
    ask = partial(judging.ask, within_s=config.judge_wait_s)
    return Outside(partial(read_back, config.bootstrap), ask, batch), batch


async def _partition_counts(bootstrap: str, topics: Iterable[Topic]) -> dict[Topic, int]:
    """Returns the number of partitions of each of ``topics``."""
    async with open_consumer(bootstrap) as consumer:
        return {topic: len(await partitions_of(consumer, topic)) for topic in topics}
