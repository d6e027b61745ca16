"""Topics whose timestamps a test sets itself, as agents cannot."""

import asyncio
from dataclasses import replace

from headrace.schemas.kafka.topic_settings import set_configs
from headrace.schemas.topics import Topic


def with_producers_time(bootstrap: str, *topics: Topic) -> None:
    """Let ``topics`` keep the timestamps that their producers set; must be called without a running event loop."""
    asyncio.run(set_configs(bootstrap, [replace(topic, broker_time=False) for topic in topics]))
