"""How far a fold has read a topic, so that a later process reads on from there, or notices that it cannot.

A bookmark is the last record of a partition that was folded: its offset, and a digest of what stands there. Reading on
begins with that record. Where another one stands there, or none, the topic was made anew or cut, and the fold that the
bookmark belongs to says nothing of it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.topics import Topic


class BookmarkedRecord(Protocol):
    """What of a record a bookmark needs; aiokafka's ``ConsumerRecord`` has it."""

    @property
    def partition(self) -> int:
        """Partition."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Unix milliseconds."""

    @property
    def key(self) -> bytes | None:
        """Key."""

    @property
    def value(self) -> bytes | None:
        """Payload."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Headers in order."""


R = TypeVar("R", bound=BookmarkedRecord)

Read: TypeAlias = Callable[[Topic, Mapping[int, int]], AsyncIterator[R]]
"""Committed records of a topic from these offsets (by partition; else all) to the end as of the call."""


class LogReplacedError(Exception):
    """A topic does not hold the record that was read last: it was made anew, or retention took the record away."""


class Bookmark(NamedTuple):
    """The last record of a partition that was folded."""

    offset: int
    """Its offset."""
    digest: str
    """Of its timestamp, key, headers and payload."""


Marks: TypeAlias = Mapping[str, Mapping[int, Bookmark]]
"""Topic → partition → bookmark."""


def bookmark(record: BookmarkedRecord) -> Bookmark:
    """The bookmark at ``record``."""
    digest = blake2b(digest_size=16)
    fields = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    digest.update(b"%d" % record.timestamp)
    for field in fields:
        digest.update(b" -" if field is None else b" %d " % len(field))
        digest.update(field or b"")
    return Bookmark(record.offset, digest.hexdigest())


class BookmarkedReader(Generic[R]):
    """Reads topics on from where it was; no record comes twice."""

    def __init__(self, read: Read[R], marks: Marks | None = None) -> None:
        """``marks``: where an earlier reader was; default the beginning."""
        self._read = read
        self._marks = {topic: dict(places) for topic, places in (marks or {}).items()}
        self._unchecked = {topic: dict(places) for topic, places in (marks or {}).items()}
        self._newest: dict[str, dict[int, R]] = {}
        self._next: dict[str, dict[int, int]] = {}

    async def unread(self, topic: Topic) -> AsyncGenerator[R]:
        """The records of ``topic`` behind those that have come before; one counts as read when the next is asked for.

        Raises :class:`LogReplacedError` where a record at a bookmark is not there any more.
        """
        following = self._next.setdefault(topic.name, {})
        newest = self._newest.setdefault(topic.name, {})
        unchecked = self._unchecked.get(topic.name, {})
        starts = following | {partition: mark.offset for partition, mark in unchecked.items()}
        async for record in self._read(topic, starts):
            if record.partition in unchecked:
                if bookmark(record) != unchecked.pop(record.partition):
                    raise LogReplacedError(_gone(topic, record.partition))
            else:
                yield record
                newest[record.partition] = record
            following[record.partition] = record.offset + 1
        for partition in unchecked:
            raise LogReplacedError(_gone(topic, partition))
        self._bookmark(topic.name)

    @property
    def marks(self) -> dict[str, dict[int, Bookmark]]:
        """Where this reader is; partitions without a record are missing."""
        for topic in list(self._newest):
            self._bookmark(topic)
        return {topic: dict(places) for topic, places in self._marks.items()}

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """Topic → partition → offset of the next record; partitions that this reader has not read are missing."""
        return {topic: dict(places) for topic, places in self._next.items()}

    def _bookmark(self, topic: str) -> None:
        """Let go of the records: they may be large."""
        marks = self._marks.setdefault(topic, {})
        for partition, record in self._newest.pop(topic, {}).items():
            marks[partition] = bookmark(record)


def _gone(topic: Topic, partition: int) -> str:
    return f"{topic.name}[{partition}] does not hold what was read last"


async def cluster_id(bootstrap: str) -> str | None:
    """The id that the cluster at ``bootstrap`` was given when it was made; ``None`` where brokers are too old."""
    async with open_admin(bootstrap) as admin:
        described = await admin.describe_cluster()
    return described.get("cluster_id") or None
