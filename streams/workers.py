"""What a worker process runs: score, group or both, each a Faust app with a consumer group, and so a lag, of its own.

A batch is decoded, folded, and committed with its offsets in one transaction a partition. A crash anywhere undoes a
batch, and it is processed again; so does an outage of Kafka, which is retried. What cannot be decoded, or what our own
code raises for, goes to ``dead-letters`` and the partition goes on; any other exception ends the process.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import faust

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.read_back import read_back
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_clock import check_clocks
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES, Topic
from headrace.streams.faust_shell.faust_app import Beside, new_app, run_apps
from headrace.streams.faust_shell.worker import ProcessorWorker
from headrace.streams.grouping.group_policy import GroupPolicies, parse_policies
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.metrics import observe_groups, observe_processor
from headrace.streams.processors.group import IGNORED, GroupOperator
from headrace.streams.processors.group_clock import GroupClock
from headrace.streams.rewards.judge_client import JudgeClient
from headrace.streams.rewards.registry import Rewards, parse_rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Outside
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.scoring.score_intake import hears_feedback
from headrace.streams.topology import TOPOLOGY

PROCESSORS = tuple(processor.name for processor in TOPOLOGY if processor.name != "assemble")
"""What a worker can run. The assembler is a process of its own (``assembly/assembler.py``)."""


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """What one worker process runs, and where."""

    bootstrap: str
    """Kafka, ``host:port``; several by comma."""
    data_dir: Path
    """Folder for Faust's own files. Nothing in it is needed after a restart."""
    processors: tuple[str, ...] = PROCESSORS
    """Which of ``PROCESSORS`` run in this process."""
    group_timeout_s: float = 600.0
    """Log time from a group's first reward until it is rejected as incomplete, in seconds."""
    remember_s: float = 24 * 3600.0
    """Log time for which a closed group is remembered, to tell duplicates from latecomers, in seconds."""
    batch: int = 500
    """Records that a processor takes at once, at most: one round trip to the broker a stage."""
    member: str | None = None
    """Name of this process among the workers: after a crash it has its partitions back at once."""
    rewards: Mapping[str, str] = field(default_factory=dict)
    """Agent → its reward spec: ``{"search": "search@1", "shop": "shop.rewards:CHECKOUT"}``; ``*`` is every other agent.
    What is named is imported and run."""
    judge_url: str | None = None
    """Endpoint that speaks OpenAI's API (``http://host:port``), for rewards that have judges."""
    judge_key_file: Path | None = None
    """File that holds the endpoint's API key, as a mounted secret does."""
    judge_concurrency: int = 16
    """Questions to judges in flight."""
    judge_batch: int = 32
    """Trajectories that are judged at once; where a reward has judges, no more records are read at once."""
    judge_wait_s: float = 120.0
    """How long a batch waits for its judges, in seconds; what has no answer by then is labelled ``judge_timeout``."""
    group_policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Reward spec → how its rewards become groups: ``{"checkout": {"by": "cohort", "baseline": "running"}}``; ``*`` is
    every other spec. The fields are those of ``GroupPolicy``."""
    trust_producers_time: bool = False
    """Start although ``feedback`` has the timestamps of its producers: windows then end by their clocks."""
    limits: GroupLimits = field(init=False)
    """The group's times in the fold's terms."""
    policies: GroupPolicies = field(init=False)
    """The same as values."""
    join_limits: JoinLimits = field(init=False)
    """The feedback join's, likewise."""

    def __post_init__(self) -> None:
        unknown = set(self.processors) - set(PROCESSORS)
        if unknown or not self.processors:
            raise ValueError(f"processors is {self.processors!r}: name one or both of {', '.join(PROCESSORS)}")
        if self.group_timeout_s <= 0 or self.remember_s < self.group_timeout_s:
            raise ValueError("group_timeout_s must be above 0, and remember_s at least as long")
        if min(self.batch, self.judge_batch, self.judge_concurrency) < 1 or self.judge_wait_s <= 0:
            raise ValueError("batch, judge_batch and judge_concurrency start at 1, and judge_wait_s must be above 0")
        judged = [spec.label for spec in parse_rewards(self.rewards).specs if spec.judges]
        if judged and self.judge_url is None and "score" in self.processors:
            raise ValueError(f"judge_url is not set, and {', '.join(judged)} must ask judges: give it an endpoint")
        if self.judge_key_file is not None and not self.judge_key_file.is_file():
            raise ValueError(f"judge_key_file names {self.judge_key_file}, which is not a file")
        limits = GroupLimits(timeout_ms=round(self.group_timeout_s * 1000), remember_ms=round(self.remember_s * 1000))
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "policies", parse_policies(self.group_policies))
        object.__setattr__(self, "join_limits", JoinLimits(remember_ms=limits.remember_ms))


def consumer_group(processor: str) -> str:
    """The consumer group of a processor on Faust."""
    return f"headrace-{processor}"


def run_workers(config: WorkersConfig, *, ready: Callable[[], None], beside: Sequence[Beside] = ()) -> int:
    """Run the processors, and what runs ``beside`` them (the assembler, where one process has all), until SIGTERM or
    SIGINT. ``ready`` is called once all of them have their partitions.

    Returns the exit status: 0 after a signal, 1 where a processor failed (the log says why). Raises ``TopicsError``
    where topics are missing or feedback cannot be joined by partition, ``WrongClockError`` where timestamps are not of
    the broker's clock. Owns the process's event loop and signals.
    """
    rewards = parse_rewards(config.rewards)
    processors = [processor for processor in TOPOLOGY if processor.name in config.processors]
    read = dict.fromkeys(topic for processor in processors for topic in processor.reads)
    partitions = asyncio.run(_partition_counts(config.bootstrap, dict.fromkeys([*read, TRAJECTORIES, FEEDBACK])))
    if hears_feedback(rewards) and partitions[FEEDBACK] != partitions[TRAJECTORIES]:
        raise TopicsError(
            f"{FEEDBACK.name} has {partitions[FEEDBACK]} partitions and {TRAJECTORIES.name} "
            f"{partitions[TRAJECTORIES]}: feedback is joined by partition, so both need as many, as events has. Make "
            "the topic anew; its records can be copied by key."
        )
    if not config.trust_producers_time:
        asyncio.run(check_clocks(config.bootstrap, read, override="workers.trust_producers_time"))
    folder = config.data_dir / "faust"
    rules = Rules(rewards, groups=config.limits, policies=config.policies, join=config.join_limits)
    apps = []
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
        observe_processor(processor.name, worker)
        apps.append(app)
    return run_apps(apps, ready=ready, beside=beside)


class _Groups:
    """What of group is observed beside what every processor's metrics say."""

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
    """What hooks may ask, and how many records are read at once: fewer where judges are asked about them."""
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
    """How many partitions each of ``topics`` has."""
    async with open_consumer(bootstrap) as consumer:
        return {topic: len(await partitions_of(consumer, topic)) for topic in topics}
