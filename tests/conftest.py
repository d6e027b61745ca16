"""Real parts for tests: each fixture starts the thing itself on a free loopback port, and its tree dies with pytest.

Imports are inside the fixtures, so that a test which needs none of them pays for none.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("HEADRACE_CACHE", Path.home() / ".cache" / "headrace"))
"""Downloads and compiled bytecode outlive a test run; nothing else does."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a fresh broker with all topics, one per test module."""
    from headrace.deploy.children import Child, end_of
    from headrace.deploy.kafka import Broker, kafka_jars, prepare_broker, wait_until_answers
    from headrace.deploy.ports import free_port
    from headrace.schemas.log import MAX_REQUEST_BYTES, create_topics

    folder = tmp_path_factory.mktemp("kafka")
    broker = Broker(folder, free_port(), free_port(), MAX_REQUEST_BYTES, heap_mb=384)

    async def prepare() -> Child:
        return Child(await prepare_broker(broker, await kafka_jars(CACHE)), folder / "kafka.log")

    async def until_ready() -> None:
        await wait_until_answers(broker.bootstrap, 90)
        await create_topics(broker.bootstrap)

    child = asyncio.run(prepare())
    try:
        asyncio.run(until_ready())
        yield broker.bootstrap
        assert child.poll() is None, f"the broker died during the tests:\n{end_of(child.log)}"
    finally:
        child.kill()
