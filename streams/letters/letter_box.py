"""What stands in ``dead-letters``: each letter once, with what was done about it since."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.schemas.records.dead_letter import DeadLetter, Redriven, Repaired
from headrace.schemas.records.reference import Reference
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.letters.repair import Content, content_of
from headrace.streams.raw import LogRecord

MAX_LETTERS = 10_000
"""Letters that are held at once; more must be narrowed down by a filter."""

MAX_BYTES = 512 * 1024 * 1024
"""Payload that is held at once."""


class TooManyLetters(ValueError):
    """More letters match than :data:`MAX_LETTERS`, or more payload than :data:`MAX_BYTES`."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and its history."""

    places: tuple[Reference, ...]
    """Where it stands in ``dead-letters``; more than once where its writer was killed after writing it."""
    dead: DeadLetter
    """As it was written."""
    repair: Repaired | None = None
    """The latest repair."""
    redriven: tuple[Redriven, ...] = ()
    """When it was sent again, and as what."""

    @property
    def name(self) -> str:
        """How commands call it: ``partition:offset`` in ``dead-letters``."""
        return f"{self.places[0].partition}:{self.places[0].offset}"

    @property
    def content(self) -> Content:
        """What would be sent again: the repaired record, else the original."""
        return content_of(self.repair or self.dead)


@dataclass(slots=True)
class LetterBox:
    """Letters that ``wanted`` takes, filled record by record in the order of the topic."""

    wanted: Callable[[DeadLetter, Reference], bool] = lambda letter, place: True
    """Which letters to hold; what was done about others is dropped."""
    unreadable: int = 0
    """Records of ``dead-letters`` that cannot be read themselves."""
    _letters: dict[tuple[str, int, int], Letter] = field(default_factory=dict)
    _bytes: int = 0

    @property
    def letters(self) -> list[Letter]:
        """In the order in which they were written first."""
        return list(self._letters.values())

    def add(self, record: LogRecord) -> None:
        """Take the next record of ``dead-letters``; raises :class:`TooManyLetters`."""
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
        except ValueError:  # no base64: whoever wrote it, it holds no record
            self.unreadable += 1
            return
        origin = (payload.topic, payload.partition, payload.offset)
        known = self._letters.get(origin)
        if isinstance(payload, DeadLetter):
            place = Reference(partition=record.partition, offset=record.offset)
            if known is not None:
                self._letters[origin] = replace(known, places=(*known.places, place))
            elif self.wanted(payload, place):
                self._letters[origin] = Letter((place,), payload)
                self._hold(record)
        elif known is None:
            return
        elif isinstance(payload, Repaired):
            self._letters[origin] = replace(known, repair=payload)
            self._hold(record)
        else:
            self._letters[origin] = replace(known, redriven=(*known.redriven, payload))

    def _hold(self, record: LogRecord) -> None:
        self._bytes += len(record.value or b"")
        if len(self._letters) > MAX_LETTERS or self._bytes > MAX_BYTES:
            held = f"{MAX_LETTERS:,} dead letters, or {MAX_BYTES >> 20} MiB of them"
            raise TooManyLetters(f"more than {held} match: narrow them down")
