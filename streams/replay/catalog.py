"""Finds and deletes replays by their manifests."""

import asyncio

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.side_topics import MANIFEST, PREFIX, ReplayFinished, side_topic
from headrace.schemas.wire import decode


class NoReplay(LookupError):
    """There is no such replay, or it was not finished; the message gives the reason and the remedy."""


async def find_replay(bootstrap: str, name: str) -> ReplayFinished:
    """Returns the manifest of the replay ``name``. Raises :class:`NoReplay`."""
    manifest = side_topic(MANIFEST, name)
    names = await replay_names(bootstrap)
    if name not in names:
        known = f"there are {', '.join(names)}" if names else f"`headrace replay {name}` makes it"
        raise NoReplay(f"no replay {name!r}: {known}")
    async for record in read_to_end(bootstrap, manifest):
        _, payload = decode(record.headers, record.value, {ReplayFinished.TYPE: ReplayFinished})
        if isinstance(payload, ReplayFinished):
            return payload
    raise NoReplay(f"replay {name!r} was not finished: run the same `headrace replay` again to complete it")


async def replay_names(bootstrap: str) -> list[str]:
    """Returns the names of replays that have topics, finished or not."""
    end = f".{MANIFEST.name}"
    return sorted(
        topic.removeprefix(PREFIX).removesuffix(end)
        for topic in await _topics(bootstrap)
        if topic.startswith(PREFIX) and topic.endswith(end)
    )


async def delete_replay(bootstrap: str, name: str) -> list[str]:
    """Delete the topics of the replay ``name`` and wait until the broker has removed them. Returns their names."""
    prefix = side_topic(MANIFEST, name).name.removesuffix(MANIFEST.name)
    found = sorted(topic for topic in await _topics(bootstrap) if topic.startswith(prefix))
    if found:
        async with open_admin(bootstrap) as admin:
            await admin.delete_topics(found)
    for _ in range(600):
        if not set(found) & set(await _topics(bootstrap)):
            return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the broker still has {', '.join(found)} a minute after it was requested to delete them")


async def _topics(bootstrap: str) -> list[str]:
    async with open_admin(bootstrap) as admin:
        return list(await admin.list_topics())
