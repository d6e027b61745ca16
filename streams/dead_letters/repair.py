"""Repairs of a dead letter: its content, edits of it, and whether the current code can read the result.

    {"call_id": "call-2", "arguments": {"query": "ada    →    {"call_id": "call-2", "arguments": {"query": "ada"}}

The dead letter itself never changes. A repair is a separate record, ``Repaired``.
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
"""``ce_source`` of repairs and of the records of redrives."""


class CannotRepair(ValueError):
    """An edit that cannot be made; the message gives the reason and an alternative."""


@dataclass(frozen=True, slots=True)
class Content:
    """Key, value and headers of a record, original or repaired."""

    key: bytes | None
    """Key."""
    value: bytes | None
    """Payload."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Headers in order."""

    def header(self, name: str) -> bytes | None:
        """Returns the header ``name``; the last one if it is repeated, as everywhere."""
        return dict(self.headers).get(name)

    @property
    def sequence(self) -> int | None:
        """Sequence number in its trajectory; ``None`` if it is missing or malformed."""
        value = self.header(SEQUENCE)
        return int(value) if value is not None and value.isdigit() and len(value) < 19 else None

    @property
    def subject(self) -> str | None:
        """``ce_subject``; ``None`` if it is missing, empty or not UTF-8."""
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
        """Returns a copy with these headers, which replace those of the same names and follow all others."""
        changed = dict(changes)
        kept = tuple((name, value) for name, value in self.headers if name not in changed)
        return replace(self, headers=(*kept, *changed.items()))


def content_of(dead_letter: DeadLetter | Repaired) -> Content:
    """Returns the content of ``dead_letter``. Raises ``ValueError`` if it is not base64."""
    headers = tuple((name, _decoded(value)) for name, value in dead_letter.headers)
    return Content(_decoded(dead_letter.key), _decoded(dead_letter.value), headers)


def edited(
    content: Content,
    *,
    value: bytes | None = None,
    fields: Sequence[tuple[str, str]] = (),
    headers: Sequence[tuple[str, str]] = (),
) -> Content:
    """Returns ``content`` with ``value`` replaced, then ``fields`` of its JSON set, then ``headers`` set.

    A field's name may be a path (``usage.prompt_tokens``, ``version_spans.0.end``). Its value is parsed as JSON if
    possible, else used as text. Raises :class:`CannotRepair`.
    """
    new = content.value if value is None else value
    if fields:
        try:
            document = json.loads(new or b"")
        except (ValueError, RecursionError) as error:
            raise CannotRepair(
                f"its value is not JSON ({error}), so no field can be set: give the whole value with --value FILE"
            ) from error
        for path, text in fields:
            _set(document, path, text)
        new = _utf8(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    return replace(content, value=new).with_headers([(name, _utf8(text)) for name, text in headers])


def readable(topic: str, content: Content) -> tuple[Envelope, Record]:
    """Returns envelope and payload of ``content`` as a record of ``topic``, decoded by the current code.

    Raises :class:`UnreadableRecord` with the remaining error, and ``KeyError`` if the topic is not a headrace topic.
    """
    models = {model.TYPE: model for model in topic_named(topic).models}
    envelope, payload = decode(content.headers, content.value, models)
    if topic == EVENTS.name and envelope.sequence is None:
        raise UnreadableRecord(DeadLetterError.BAD_HEADERS, f"header {SEQUENCE} is missing or malformed")
    if not envelope.subject:
        raise UnreadableRecord(DeadLetterError.BAD_HEADERS, f"header {SUBJECT} is empty")
    return envelope, payload


def repair_message(dead_letter: DeadLetter, content: Content, time_ms: int) -> Message:
    """Returns the record that replaces the content of ``dead_letter`` by ``content``. Its id is derived from both."""
    repaired = Repaired(
        topic=dead_letter.topic,
        partition=dead_letter.partition,
        offset=dead_letter.offset,
        key=_encoded(content.key),
        value=_encoded(content.value) or "",
        headers=[(name, _encoded(value)) for name, value in content.headers],
    )
    place = f"{dead_letter.topic}:{dead_letter.partition}"
    return record_message(
        repaired,
        id=derived_id(Repaired.TYPE, place, dead_letter.offset, content.sha256),
        key=place,
        source=SOURCE,
        time_ms=time_ms,
        subject=dead_letter.trajectory_id or f"{place}:{dead_letter.offset}",
    )


def json_error(value: bytes | None) -> tuple[int, str] | None:
    """Returns the byte index at which ``value`` stops being JSON, and why; ``None`` if it is JSON or null."""
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
        raise CannotRepair(f"{path!r} has no parent object or list: set the parent field, as JSON")


def _item(holder: Any, name: str) -> Any:
    return holder[int(name)] if isinstance(holder, list) and _is_index(name) and int(name) < len(holder) else None


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CannotRepair(f"an unpaired surrogate is not valid text: {text[error.start : error.end]!r}") from error


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _encoded(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode("ascii")
