"""The Faust shell of score and group: records in, pure functions, records out. One app a processor.

A batch goes: decode, fold, make state durable (group only), send, wait for the broker, acknowledge. A crash anywhere
repeats a batch; ids that follow from content and state keyed by id make the repetition invisible. What cannot be
decoded goes to ``dead-letters`` and the agent goes on; any other exception ends the process.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faust

from headrace.schemas.log import open_consumer, partitions_of
from headrace.schemas.records import Reference, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, REWARDS, TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.continuity import Continuity
from headrace.streams.dead_letters import dead_letter_message
from headrace.streams.faust_app import (
    batches,
    current,
    decode_as,
    new_app,
    raw_topic,
    run_apps,
    send_all,
    stored_record,
)
from headrace.streams.group_worker import GroupWorker
from headrace.streams.groups import GroupLimits
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.score import reward_message, score

logger = logging.getLogger(__name__)

PROCESSORS = ("score", "group")
"""What a worker can run."""


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
    limits: GroupLimits = field(init=False)
    """The same in the fold's terms."""

    def __post_init__(self) -> None:
        unknown = set(self.processors) - set(PROCESSORS)
        if unknown or not self.processors:
            raise ValueError(f"processors is {self.processors!r}: name one or both of {', '.join(PROCESSORS)}")
        if self.group_timeout_s <= 0 or self.remember_s < self.group_timeout_s:
            raise ValueError("group_timeout_s must be above 0, and remember_s at least as long")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}: it must be at least 1")
        limits = GroupLimits(timeout_ms=round(self.group_timeout_s * 1000), remember_ms=round(self.remember_s * 1000))
        object.__setattr__(self, "limits", limits)


def run_workers(config: WorkersConfig, *, ready: Callable[[], None]) -> int:
    """Run the processors until SIGTERM or SIGINT. ``ready`` is called once all of them have their partitions.

    Returns the exit status: 0 after a signal, 1 where a processor failed (the log says why). Raises ``LookupError``
    where the topics are missing. Owns the process's event loop and signals.
    """
    sources, partitions = asyncio.run(_partition_counts(config.bootstrap))
    folder = config.data_dir / "faust"
    apps = []
    for name in config.processors:
        app = new_app(f"headrace-{name}", config.bootstrap, folder, batch=config.batch, member=config.member)
        if name == "score":
            add_score(app, config.bootstrap, config.batch)
        else:
            GroupWorker(
                app, config.bootstrap, config.limits, partitions=partitions, sources=sources, batch=config.batch
            )
        apps.append(app)
    return run_apps(apps, ready=ready)


def scored(record: LogRecord) -> Outgoing:
    """What becomes of a record of ``trajectories``: its reward or, where it cannot be read, its dead letter."""
    try:
        trajectory = decode_as(record, Trajectory)
    except UnreadableRecord as error:
        logger.warning("%s[%d]@%d cannot be scored: %s", record.topic, record.partition, record.offset, error)
        return Outgoing(DEAD_LETTERS, dead_letter_message(record, error), record.timestamp)
    reward = score(trajectory, Reference(partition=record.partition, offset=record.offset))
    return Outgoing(REWARDS, reward_message(reward), record.timestamp)


def add_score(app: faust.App, bootstrap: str, batch: int) -> None:
    """Make ``app`` score ``trajectories`` into ``rewards``, ``batch`` at a time."""
    continuity = Continuity(app, bootstrap, TRAJECTORIES, transactional=True)

    @app.agent(raw_topic(app, TRAJECTORIES), name="score")
    async def score_trajectories(stream: Any) -> None:
        async for batched in batches(stream, batch):
            events = current(app, batched)
            arrived = [stored_record(event) for event in events]
            for record in arrived:
                await continuity.check(record)
            await send_all(app, [scored(record) for record in arrived])
            for event in events:
                event.ack()


async def _partition_counts(bootstrap: str) -> tuple[int, int]:
    """Partitions of ``trajectories``, and of ``rewards``: the table's changelog must have as many as these."""
    async with open_consumer(bootstrap) as consumer:
        return len(await partitions_of(consumer, TRAJECTORIES)), len(await partitions_of(consumer, REWARDS))
