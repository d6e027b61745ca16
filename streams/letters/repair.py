"""Mending a dead letter: what it holds, edits of it, and whether today's code can read the result.

    {"call_id": "call-2", "arguments": {"query": "ada    →    {"call_id": "call-2", "arguments": {"query": "ada"}}

The letter itself never changes. A repair is a record of its own beside it, ``Repaired``.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.schemas.envelope import SEQUENCE, SUBJECT, Envelope
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError, Repaired
from headrace.schemas.topics import EVENTS, topic_named
from headrace.schemas.wire import Message, UnreadableRecord, decode, record_message

SOURCE = "/headrace/dead-letters"
"""``ce_source`` of repairs and of what says that a letter was sent again."""


class CannotRepair(ValueError):
    """An edit that cannot be made; the message says why and what would do."""


@dataclass(frozen=True, slots=True)
class Content:
    """Key, value and headers of a record: the original's, or repaired."""

    key: bytes | None
    """Key."""
    value: bytes | None
    """Payload."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Headers in order."""

    def header(self, name: str) -> bytes | None:
        """The header ``name``; of several the last, as everywhere."""
        return dict(self.headers).get(name)

    @property
    def sequence(self) -> int | None:
        """Position in its trajectory; ``None`` where no usable one is given."""
        value = self.header(SEQUENCE)
        return int(value) if value is not None and value.isdigit() and len(value) < 19 else None

    @property
    def subject(self) -> str | None:
        """What it is about; ``None`` where no usable header says it."""
        try:
            return (self.header(SUBJECT) or b"").decode() or None
        except UnicodeDecodeError:
            return None

    @property
    def sha256(self) -> str:
        """Hash (hex) of headers and value, lengths included."""
        digest = hashlib.sha256()
        for part in (*(part for name, value in self.headers for part in (name.encode(), value)), self.value):
            digest.update(b"-" if part is None else b"%d:" % len(part) + part)
        return digest.hexdigest()

    def with_headers(self, changes: Iterable[tuple[str, bytes]]) -> "Content":
        """With these headers in the place of those of the same names; new ones at the end."""
        changed = dict(changes)
        kept = tuple((name, value) for name, value in self.headers if name not in changed)
        return replace(self, headers=(*kept, *changed.items()))


def content_of(letter: DeadLetter | Repaired) -> Content:
    """What ``letter`` holds. Raises ``ValueError`` where that is no base64."""
    headers = tuple((name, _decoded(value)) for name, value in letter.headers)
    return Content(_decoded(letter.key), _decoded(letter.value), headers)


def edited(
    content: Content,
    *,
    value: bytes | None = None,
    fields: Sequence[tuple[str, str]] = (),
    headers: Sequence[tuple[str, str]] = (),
) -> Content:
    """``content`` with another value, then with ``fields`` of its JSON set, then with ``headers`` set.

    A field's name may be a path (``usage.prompt_tokens``, ``version_spans.0.end``); its value is taken as JSON where
    it is JSON, else as text. Raises :class:`CannotRepair`.
    """
    new = content.value if value is None else value
    if fields:
        try:
            document = json.loads(new or b"")
        except (ValueError, RecursionError) as error:
            raise CannotRepair(
                f"its value is no JSON ({error}), so no field can be set: give the whole value with --value FILE"
            ) from error
        for path, text in fields:
            _set(document, path, text)
        new = _utf8(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    return replace(content, value=new).with_headers([(name, _utf8(text)) for name, text in headers])


def readable(topic: str, content: Content) -> tuple[Envelope, Record]:
    """Envelope and payload of ``content`` as a record of ``topic``, as today's code reads it.

    Raises :class:`UnreadableRecord` that says what is still wrong; ``KeyError`` where the topic is none of ours.
    """
    models = {model.TYPE: model for model in topic_named(topic).models}
    envelope, payload = decode(content.headers, content.value, models)
    if topic == EVENTS.name and envelope.sequence is None:
        raise UnreadableRecord(DeadLetterError.BAD_HEADERS, f"header {SEQUENCE} is missing: an event needs its place")
    if not envelope.subject:
        raise UnreadableRecord(DeadLetterError.BAD_HEADERS, f"header {SUBJECT} is empty")
    return envelope, payload


def repair_message(letter: DeadLetter, content: Content, time_ms: int) -> Message:
    """The record that says that ``content`` takes the place of ``letter``'s. Said twice, it is one record."""
    repaired = Repaired(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        key=_encoded(content.key),
        value=_encoded(content.value) or "",
        headers=[(name, _encoded(value)) for name, value in content.headers],
    )
    place = f"{letter.topic}:{letter.partition}"
    return record_message(
        repaired,
        id=derived_id(Repaired.TYPE, place, letter.offset, content.sha256),
        key=place,
        source=SOURCE,
        time_ms=time_ms,
        subject=letter.trajectory_id or f"{place}:{letter.offset}",
    )


def json_error(value: bytes | None) -> tuple[int, str] | None:
    """Where ``value`` stops being JSON, as an index of bytes, and why; ``None`` where it is JSON or null."""
    if value is None:
        return None
    try:
        json.loads(value.decode())
    except UnicodeDecodeError as error:
        return error.start, f"not UTF-8: {error.reason}"
    except json.JSONDecodeError as error:
        return len(error.doc[: error.pos].encode()), error.msg.removesuffix(" at")
    except RecursionError:
        return 0, "nested too deep to be read"
    except ValueError as error:  # a number of thousands of digits
        return 0, str(error)
    return None


def _set(document: Any, path: str, text: str) -> None:
    """Set the field at ``path`` in place."""
    try:
        new = json.loads(text)
    except (ValueError, RecursionError):
        new = text
    *outer, last = path.split(".")
    holder = document
    for name in outer:
        holder = holder.get(name) if isinstance(holder, dict) else _item(holder, name)
    if isinstance(holder, dict):
        holder[last] = new
    elif _item(holder, last) is not None:
        holder[int(last)] = new
    else:
        raise CannotRepair(f"there is nothing to hold a field at {path!r}: set the field that holds it, as JSON")


def _item(holder: Any, name: str) -> Any:
    return holder[int(name)] if isinstance(holder, list) and _is_index(name) and int(name) < len(holder) else None


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CannotRepair(f"half of a surrogate pair is no text: {text[error.start : error.end]!r}") from error


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _encoded(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode("ascii")
