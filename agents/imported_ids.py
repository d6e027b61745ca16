"""Which events of imports the log holds: a fold over the headers of ``events``, kept from one import to the next."""

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
from headrace.schemas.kafka.fold_cache import UnusableFoldError, digest_of
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.kafka.resumed_fold import resume_fold
from headrace.schemas.topics import EVENTS

_DIGEST_BYTES = 16
_PREFIX = IMPORT_SOURCES.encode()


@dataclass(slots=True)
class _Held:
    """Events of one source in one partition: 24 bytes each."""

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    digests: bytearray = field(default_factory=bytearray)


class ImportedIds:
    """The events of all imports, by source and partition."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, _Held]] = {}

    def add(self, source: str, event_id: bytes, partition: int, offset: int) -> None:
        """The event ``event_id`` stands at ``offset``, behind all that were added of its partition."""
        held = self._held.setdefault(source, {}).setdefault(partition, _Held())
        held.offsets.append(offset)
        held.digests += id_digest(event_id)

    def of(self, source: str, begins: Mapping[int, int]) -> set[bytes]:
        """Digests (:func:`id_digest`) of the events of ``source`` that the log still holds, from ``begins`` on."""
        found = set()
        for partition, held in self._held.get(source, {}).items():
            begin = begins.get(partition, 0)
            for number, offset in enumerate(held.offsets):
                if offset >= begin:
                    found.add(bytes(held.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]))
        return found

    def packed(self) -> bytes:
        """All of it as bytes."""
        head = [
            [source, [[partition, len(held.offsets)] for partition, held in places.items()]]
            for source, places in self._held.items()
        ]
        body = [
            part
            for places in self._held.values()
            for held in places.values()
            for part in (held.offsets.tobytes(), bytes(held.digests))
        ]
        return b"".join([json.dumps(head).encode(), b"\n", *body])

    @classmethod
    def unpacked(cls, packed: bytes) -> "ImportedIds":
        """What :meth:`packed` made; raises :class:`UnusableFoldError` for other bytes."""
        head, _, body = packed.partition(b"\n")
        made, at = cls(), 0
        try:
            for source, places in json.loads(head):
                for partition, count in places:
                    end = at + 8 * count
                    held = _Held(array("Q", body[at:end]), bytearray(body[end : end + _DIGEST_BYTES * count]))
                    if len(held.offsets) != count or len(held.digests) != _DIGEST_BYTES * count:
                        raise UnusableFoldError("it is damaged (too short)")
                    made._held.setdefault(str(source), {})[int(partition)] = held
                    at = end + _DIGEST_BYTES * count
        except (ValueError, TypeError) as error:
            raise UnusableFoldError(f"it is damaged ({error})") from error
        return made


def id_digest(event_id: bytes) -> bytes:
    """What is kept of an event's id: 16 bytes."""
    return blake2b(event_id, digest_size=_DIGEST_BYTES).digest()


class _Reader:
    def __init__(self, bootstrap: str, ids: ImportedIds, marks: Marks | None = None) -> None:
        self.ids = ids
        self._reader: BookmarkedReader[KafkaRecord] = BookmarkedReader(
            lambda topic, start: read_to_end(bootstrap, topic, start=start, decided=True), marks
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
    """Digests (:func:`id_digest`) of the ids of the events from ``source`` that the log holds.

    ``cache``: the folder where the fold is kept for the next import, of whatever source; ``None``: it is not. Raises
    ``LookupError`` where there is no topic, and aiokafka's errors.
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
    # Asked afterwards: retention goes on while we read. What has passed it may be imported again.
    async with open_consumer(bootstrap) as consumer:
        begins = await consumer.beginning_offsets(await partitions_of(consumer, EVENTS))
    return reader.ids.of(source, {place.partition: offset for place, offset in begins.items()})
