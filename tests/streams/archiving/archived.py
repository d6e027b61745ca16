"""Archives a broker's topics at once, for tests of what reads the archive."""

import asyncio
from pathlib import Path
from typing import Any

from headrace.schemas.objects.store import ObjectStore
from headrace.streams.archiving.archiver import Archiver, open_log
from headrace.streams.archiving.config import ArchiveConfig


async def archive_now(kafka: str, folder: Path, **options: Any) -> int:
    """Archive everything that the log has; returns the number of new segments."""
    config = ArchiveConfig(kafka, folder.as_uri(), **({"interval_s": 0} | options))
    async with open_log(kafka) as log:
        return await Archiver(config, ObjectStore(config.store_url)).turn(log, asyncio.Event())
