"""Bookmarks: the position of a fold in a topic, from which a later process can resume reading if the log is the same.

A bookmark identifies the last folded record of a partition by its offset and a digest of its content. A resumed reader
starts with that record. If the record is different or missing, the topic was recreated or truncated, and the stored
fold is not valid for it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.topics import Topic


class BookmarkedRecord(Protocol):
    """The attributes of a record that a bookmark needs; aiokafka's ``ConsumerRecord`` has them."""

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
"""Reads the committed records of a topic, from these offsets (by partition; default: the start) to the end of the log
at the time of the call."""


class LogReplacedError(Exception):
    """A topic does not contain the last record that was read: the topic was recreated, or retention deleted the
    record."""


class Bookmark(NamedTuple):
    """The last folded record of a partition."""

    offset: int
    """Its offset."""
    digest: str
    """Digest of its timestamp, key, headers and payload."""


Marks: TypeAlias = Mapping[str, Mapping[int, Bookmark]]
"""Bookmarks by topic and partition."""


def bookmark(record: BookmarkedRecord) -> Bookmark:
    """Return the bookmark for ``record``."""
    digest = blake2b(digest_size=16)
    fields = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    digest.update(b"%d" % record.timestamp)
    for field in fields:
        digest.update(b" -" if field is None else b" %d " % len(field))
        digest.update(field or b"")
    return Bookmark(record.offset, digest.hexdigest())


class BookmarkedReader(Generic[R]):
    """Reads topics incrementally: each call continues where the previous one ended, and no record is returned twice."""

    def __init__(self, read: Read[R], marks: Marks | None = None) -> None:
        """``marks``: bookmarks of an earlier reader; default: the start of the log."""
        self._read = read
        self._marks = {topic: dict(partitions) for topic, partitions in (marks or {}).items()}
        self._unchecked = {topic: dict(partitions) for topic, partitions in (marks or {}).items()}
        self._newest: dict[str, dict[int, R]] = {}
        self._next: dict[str, dict[int, int]] = {}

    async def unread(self, topic: Topic) -> AsyncGenerator[R]:
        """Yield the records of ``topic`` that were not read before; a record counts as read when the next is requested.

        Raises :class:`LogReplacedError` if the record at a bookmark is different or missing.
        """
        following = self._next.setdefault(topic.name, {})
        newest = self._newest.setdefault(topic.name, {})
        unchecked = self._unchecked.get(topic.name, {})
        starts = following | {partition: mark.offset for partition, mark in unchecked.items()}
        async for record in self._read(topic, starts):
            if record.partition in unchecked:
                if bookmark(record) != unchecked.pop(record.partition):
                    raise LogReplacedError(_missing(topic, record.partition))
            else:
                yield record
                newest[record.partition] = record
            following[record.partition] = record.offset + 1
        for partition in unchecked:
            raise LogReplacedError(_missing(topic, partition))
        self._bookmark(topic.name)

    @property
    def marks(self) -> dict[str, dict[int, Bookmark]]:
        """Bookmarks of this reader; partitions without records have none."""
        for topic in list(self._newest):
            self._bookmark(topic)
        return {topic: dict(partitions) for topic, partitions in self._marks.items()}

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """Offset of the next record by topic and partition, for the partitions that this reader has read."""
        return {topic: dict(partitions) for topic, partitions in self._next.items()}

    def _bookmark(self, topic: str) -> None:
        """Replace the newest records of ``topic`` by bookmarks, which releases the records: they may be large."""
        marks = self._marks.setdefault(topic, {})
        for partition, record in self._newest.pop(topic, {}).items():
            marks[partition] = bookmark(record)


def _missing(topic: Topic, partition: int) -> str:
    return f"{topic.name}[{partition}] does not contain the last record that was read"


async def cluster_id(bootstrap: str) -> str | None:
    """Return the id of the cluster at ``bootstrap``, which it got when it was created; ``None`` if its brokers are too
    old to report it."""
    async with open_admin(bootstrap) as admin:
        described = await admin.describe_cluster()
    return described.get("cluster_id") or None
