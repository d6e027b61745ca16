"""The imported events that the log contains: a fold over the headers of ``events``, cached between imports."""

import json
import sys
from array import array
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from headrace.agents import openai_runs
from headrace.agents.openai_runs import IMPORT_SOURCES
from headrace.schemas.envelope import ID, SOURCE
from headrace.schemas.kafka.bookmarks import BookmarkedReader, Marks
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.expired import skip_expired
from headrace.schemas.kafka.fold_cache import UnusableFoldError, digest_of
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.kafka.resumed_fold import resume_fold
from headrace.schemas.topics import EVENTS

_DIGEST_BYTES = 16
_PREFIX = IMPORT_SOURCES.encode()


@dataclass(slots=True)
class _PartitionEvents:
    """Events of one source in one partition, 24 bytes each."""

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    digests: bytearray = field(default_factory=bytearray)


class ImportedIds:
    """The events of all imports, by source and partition."""

    def __init__(self) -> None:
        self._events: dict[str, dict[int, _PartitionEvents]] = {}

    def add(self, source: str, event_id: bytes, partition: int, offset: int) -> None:
        """Add the event ``event_id`` at ``offset``, which is higher than all earlier offsets of the partition."""
        events = self._events.setdefault(source, {}).setdefault(partition, _PartitionEvents())
        events.offsets.append(offset)
        events.digests += id_digest(event_id)

    def of(self, source: str, first_offsets: Mapping[int, int]) -> set[bytes]:
        """Return the digests (:func:`id_digest`) of the events of ``source`` at or after ``first_offsets``, the first
        offsets that the partitions still contain."""
        found = set()
        for partition, events in self._events.get(source, {}).items():
            first = first_offsets.get(partition, 0)
            for number, offset in enumerate(events.offsets):
                if offset >= first:
                    found.add(bytes(events.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]))
        return found

    def packed(self) -> bytes:
        """Return the state as bytes."""
        head = [
            [source, [[partition, len(events.offsets)] for partition, events in partitions.items()]]
            for source, partitions in self._events.items()
        ]
        body = [
            part
            for partitions in self._events.values()
            for events in partitions.values()
            for part in (events.offsets.tobytes(), bytes(events.digests))
        ]
        return b"".join([json.dumps(head).encode(), b"\n", *body])

    @classmethod
    def unpacked(cls, packed: bytes) -> "ImportedIds":
        """Restore the state that :meth:`packed` returned; raise :class:`UnusableFoldError` for other bytes."""
        head, _, body = packed.partition(b"\n")
        restored, at = cls(), 0
        try:
            for source, partitions in json.loads(head):
                for partition, count in partitions:
                    end = at + 8 * count
                    digests = bytearray(body[end : end + _DIGEST_BYTES * count])
                    events = _PartitionEvents(array("Q", body[at:end]), digests)
                    if len(events.offsets) != count or len(events.digests) != _DIGEST_BYTES * count:
                        raise UnusableFoldError("it is damaged (too short)")
                    restored._events.setdefault(str(source), {})[int(partition)] = events
                    at = end + _DIGEST_BYTES * count
        except (ValueError, TypeError) as error:
            raise UnusableFoldError(f"it is damaged ({error})") from error
        return restored


def id_digest(event_id: bytes) -> bytes:
    """Return the digest that represents an event's id: 16 bytes."""
    return blake2b(event_id, digest_size=_DIGEST_BYTES).digest()


class _Reader:
    def __init__(self, bootstrap: str, ids: ImportedIds, marks: Marks | None = None) -> None:
        self.ids = ids
        self._reader: BookmarkedReader[KafkaRecord] = BookmarkedReader(
            # An event that retention has deleted is imported again, whether or not it was read before.
            lambda topic, start: read_to_end(bootstrap, topic, start=start, decided=True, on_expired=skip_expired),
            marks,
        )

    async def catch_up(self) -> None:
        async with aclosing(self._reader.unread(EVENTS)) as records:
            async for record in records:
                headers = dict(record.headers)
                source, event_id = headers.get(SOURCE), headers.get(ID)
                if source and event_id and source.startswith(_PREFIX):
                    self.ids.add(source.decode(errors="replace"), event_id, record.partition, record.offset)

    @property
    def marks(self) -> Marks:
        return self._reader.marks


async def imported_ids(bootstrap: str, source: str, cache: Path | None) -> set[bytes]:
    """Return the digests (:func:`id_digest`) of the ids of the events from ``source`` that the log contains.

    ``cache``: folder in which the fold is stored for the next import from any source; ``None``: it is not stored.
    Raises ``LookupError`` if the topic does not exist, and aiokafka's errors.
    """
    reader = await resume_fold(
        bootstrap,
        cache,
        "import",
        digest_of(__file__, openai_runs.__file__) + sys.byteorder,
        begin=lambda: _Reader(bootstrap, ImportedIds()),
        resume=lambda packed, marks: _Reader(bootstrap, ImportedIds.unpacked(packed), marks),
        pack=lambda reader: reader.ids.packed(),
    )
    # Requested last: retention may delete events while they are read. Deleted events may be imported again.
    async with open_consumer(bootstrap) as consumer:
        first_offsets = await consumer.beginning_offsets(await partitions_of(consumer, EVENTS))
    return reader.ids.of(source, {place.partition: offset for place, offset in first_offsets.items()})
