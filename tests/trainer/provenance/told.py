"""A run that a real trainer trained from a real log, with everything that the streams would have left there."""

import asyncio
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from headrace.schemas.topics import Topic
from headrace.trainer.config import TrainerConfig
from headrace.trainer.loop import run_trainer
from tests.trainer.builders import tiny_model


def train(kafka: str, folder: Path, run: str, steps: int, **settings: object) -> None:
    """Train ``steps`` steps of what was fed for ``run``, two groups a step."""
    config = TrainerConfig(
        kafka,
        run,
        tiny_model(folder / "base"),
        folder / "checkpoints",
        f"file://{folder}/objects",
        **({"groups_per_step": 2, "max_staleness": 100, "threads": 1} | settings),
    )

    async def until_announced() -> None:
        stop = asyncio.Event()

        def reached(arrow: str, version: int) -> None:
            if (arrow, version) == ("announced", steps):
                stop.set()

        await asyncio.wait_for(run_trainer(config, stop=stop, ready=lambda: None, reached=reached), 120)

    asyncio.run(until_announced())


def forget(kafka: str, topic: Topic, partition: int, before: int) -> None:
    """Delete the records of a partition below an offset, as retention does."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic.name, partition): RecordsToDelete(before_offset=before)})
        finally:
            await admin.close()

    asyncio.run(delete())
