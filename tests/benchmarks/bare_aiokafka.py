"""Reads ``events`` with aiokafka and discards them: python bare_aiokafka.py BOOTSTRAP GROUP. Runs until killed."""

import asyncio
import sys
import time

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.topics import EVENTS

COMMIT_S = 0.05
"""Commit interval. Commits are explicit, since the client's own starve while records flow; they measure progress."""


async def main(bootstrap: str, group: str) -> None:
    async with open_consumer(bootstrap, [EVENTS], group=group) as consumer:
        next_commit = 0.0
        while True:
            await consumer.getmany(timeout_ms=20, max_records=1000)
            if time.monotonic() > next_commit:
                await consumer.commit()
                next_commit = time.monotonic() + COMMIT_S


asyncio.run(main(*sys.argv[1:]))
