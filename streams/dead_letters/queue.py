"""The content of ``dead-letters``: each dead letter once, with its repairs and redrives."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.schemas.records.dead_letter import DeadLetter, Redriven, Repaired
from headrace.schemas.records.reference import Reference
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.dead_letters.repair import Content, content_of
from headrace.streams.raw import LogRecord

MAX_DEAD_LETTERS = 10_000
"""Most entries in memory; a filter must narrow down a larger queue."""

MAX_BYTES = 512 * 1024 * 1024
"""Most payload in memory."""


class TooManyDeadLetters(ValueError):
    """More entries match than :data:`MAX_DEAD_LETTERS`, or more payload than :data:`MAX_BYTES`."""


@dataclass(frozen=True, slots=True)
class DeadLetterEntry:
    """A dead letter and its history."""

    places: tuple[Reference, ...]
    """Its positions in ``dead-letters``; several if its writer was killed after writing it and wrote it again."""
    dead_letter: DeadLetter
    """The record as it was written."""
    repair: Repaired | None = None
    """The latest repair."""
    redriven: tuple[Redriven, ...] = ()
    """The records of its redrives, in order."""

    @property
    def name(self) -> str:
        """Its name in commands: ``partition:offset`` in ``dead-letters``."""
        return f"{self.places[0].partition}:{self.places[0].offset}"

    @property
    def content(self) -> Content:
        """The record that a redrive would send: the repaired one if there is a repair, else the original."""
        return content_of(self.repair or self.dead_letter)


@dataclass(slots=True)
class DeadLetterQueue:
    """The dead letters that ``wanted`` accepts, filled record by record in the order of the topic."""

    wanted: Callable[[DeadLetter, Reference], bool] = lambda dead_letter, place: True
    """Which dead letters to keep; repairs and redrives of others are dropped."""
    unreadable: int = 0
    """Records of ``dead-letters`` that cannot be decoded."""
    _entries: dict[tuple[str, int, int], DeadLetterEntry] = field(default_factory=dict)
    _bytes: int = 0

    @property
    def entries(self) -> list[DeadLetterEntry]:
        """The entries, in the order in which they were first written."""
        return list(self._entries.values())

    def add(self, record: LogRecord) -> None:
        """Add the next record of ``dead-letters``. Raises :class:`TooManyDeadLetters`."""
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            self.unreadable += 1
            return
        if not isinstance(payload, DeadLetter | Repaired | Redriven):
            self.unreadable += 1
            return
        self._note(record, payload)

    def _note(self, record: LogRecord, payload: DeadLetter | Repaired | Redriven) -> None:
        try:
            if not isinstance(payload, Redriven):
                content_of(payload)
        except ValueError:  # not base64, so it holds no record
            self.unreadable += 1
            return
        origin = (payload.topic, payload.partition, payload.offset)
        known = self._entries.get(origin)
        if isinstance(payload, DeadLetter):
            place = Reference(partition=record.partition, offset=record.offset)
            if known is not None:
                self._entries[origin] = replace(known, places=(*known.places, place))
            elif self.wanted(payload, place):
                self._entries[origin] = DeadLetterEntry((place,), payload)
                self._hold(record)
        elif known is None:
            return
        elif isinstance(payload, Repaired):
            self._entries[origin] = replace(known, repair=payload)
            self._hold(record)
        else:
            self._entries[origin] = replace(known, redriven=(*known.redriven, payload))

    def _hold(self, record: LogRecord) -> None:
        self._bytes += len(record.value or b"")
        if len(self._entries) > MAX_DEAD_LETTERS or self._bytes > MAX_BYTES:
            held = f"{MAX_DEAD_LETTERS:,} dead letters, or {MAX_BYTES >> 20} MiB of them"
            raise TooManyDeadLetters(f"more than {held} match: narrow them down")
