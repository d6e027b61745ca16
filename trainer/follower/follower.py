"""The follower: makes one inference engine serve the newest policy version, and verifies that it does.

    weights (the log) → fetch, verify → swap into the running engine → compare canaries → applied (the log)
                                                                      ↳ alerts, and rollback to the last good version

This is the I/O layer on Kafka; ``reconcile.py`` holds the rules. A follower keeps its own state across restarts in a
file (``memory.py``): from the log it accepts only versions that a trusted key signed.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from aiokafka import AIOKafkaProducer

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, APPLIED, WEIGHTS, Topic
from headrace.schemas.wire import UnreadableRecord, decode, record_message
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.engine import open_engine
from headrace.trainer.follower.memory import read_memory
from headrace.trainer.follower.reconcile import Announce, Follower

logger = logging.getLogger(__name__)


async def run_follower(config: FollowerConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Follow ``config.run`` until ``stop``; a swap that has begun is finished first.

    ``ready`` is called once the log has been read to its end. Raises ``LookupError`` if topics are missing, and
    aiokafka's errors if the broker is lost; an unavailable engine or store is retried.
    """
    config.cache_dir.mkdir(parents=True, exist_ok=True)
    async with (
        open_producer(config.bootstrap) as producer,
        # Only the newest version counts: older ones that have expired are superseded.
        open_consumer(config.bootstrap, on_expired=skip_expired) as consumer,
        open_engine(config.engine_url, timeout_s=config.engine_timeout_s) as engine,
    ):
        for topic in (APPLIED, ALERTS):
            await producer.partitions_for(topic.name)  # without cached metadata a send fails in an outage
        versions = read_memory(config.cache_dir, config.run, config.engine)
        follower = Follower(config, engine, announcer(producer, config), versions)
        partitions = await partitions_of(consumer, WEIGHTS)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        caught_up = False
        while not stop.is_set():
            batches = await consumer.getmany(timeout_ms=int(config.poll_interval_s * 1000) if caught_up else 100)
            for record in (record for records in batches.values() for record in records):
                await consider(follower, record)
            if not caught_up:
                # Only the newest version is worth applying: read the log to its end first.
                if any([await consumer.position(partition) < ends[partition] for partition in partitions]):
                    continue
                caught_up = True
                ready()
            await follower.reconcile()


async def consider(follower: Follower, record: KafkaRecord) -> None:
    """Pass a record of ``weights`` to ``follower``, if it is of its run."""
    place = f"{record.topic}-{record.partition}@{record.offset}"
    try:
        _, pointer = decode(record.headers, record.value)
    except UnreadableRecord as error:
        if record.key == follower.config.run.encode():
            await follower.report_untrusted(place, f"it cannot be read: {error}")
        return
    if isinstance(pointer, Weights) and pointer.run == follower.config.run:
        await follower.consider(pointer, place)


def announcer(producer: AIOKafkaProducer, config: FollowerConfig) -> Announce:
    """Returns a function that sends a record of this follower and waits for the broker's acknowledgement."""

    async def announce(topic: Topic, record: Record, id: str) -> None:
        message = record_message(
            record,
            id=id,
            key=config.run,
            source=f"/headrace/follower/{config.engine}",
            time_ms=time.time_ns() // 1_000_000,
            subject=config.engine,
        )
        await (await send(producer, topic, message))

    return announce
