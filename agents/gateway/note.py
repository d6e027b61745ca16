"""What an event of the gateway says beside its payload, for a gateway that starts: a header with a signed note.

    headrace_gateway  9f86d081884c7d659a2feaa0c55ad015 {"tenant":"acme","scope":"s1","slot":"mX…","context":"9f…"}

A note has keys of conversations, names of sessions and lengths of texts, and no text itself. The signature covers the
event's place and payload, so that nothing but the gateways of one secret decides which tokens a prompt begins with:
other programs write to the topic, too. A note without a right signature is as good as none.
"""

import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from headrace.agents.gateway.canonical import Call, Message, MessageRole, call_of
from headrace.agents.gateway.sealed import MAC_BYTES, Sealer
from headrace.schemas.events import Purpose

MAX_NOTE_BYTES: Final = 64 * 1024
"""Longest header that is read."""

MAX_FORMS: Final = 256
MAX_BLOCKS: Final = 1_024
"""Most messages whose form is kept, and blocks of text in them; of a longer context only the answer's is."""


class Form(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the format of chat completions, in which events have messages, does not express of one."""

    at: int
    """Index among the event's messages."""
    role: MessageRole
    blocks: tuple[int, ...] = ()
    """Length of each block of text, in characters."""
    answers: int | str | None = None
    failed: bool = False
    echoed: tuple[str, ...] = ()
    """Of a summary: the sealed id."""
    digest: bytes = b""
    """Digest, where it does not follow from the rest; else empty."""


class StartNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Beside ``trajectory.started``."""

    scope: str
    source: str
    """What named the session (:class:`~headrace.agents.gateway.session_identity.Source`)."""
    opening: bytes = b""
    """Key of the messages before the first answer; empty if it was opened before its first request."""
    is_main: bool = False
    has_tools: bool = False
    masked: bool = False
    name: str | None = None
    """For a sub-agent: its name in the parent's events."""
    stage: int = 0
    """For a sub-agent: number of the parent's calls when it started."""
    tool: str | None = None
    """For a sub-agent: id of the tool call that started it."""


class CallNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Beside ``model.called``; keys are those of :mod:`~headrace.agents.gateway.nodes`."""

    tenant: str
    scope: str
    slot: bytes
    context: bytes
    """Key of the request."""
    opening: bytes
    key: bytes = b""
    """Key of the node; empty if it is ``slot``."""
    ends_with_stop_token: bool = False
    has_instructions: bool = False
    has_tools: bool = False
    window: int | None = None
    """Codex: number of the context window."""
    consent: bool = True
    """Whether its session may be trained on."""
    purpose: Purpose = Purpose.TRAIN
    """Purpose of its session."""
    has_context: bool = False
    """Whether ``forms`` are those of the context, too, and not only of the answer."""
    forms: tuple[Form, ...] = ()


_MAC_CHARACTERS: Final = 2 * MAC_BYTES + 1
"""What a signature takes in the header."""

_Note = TypeVar("_Note", StartNote, CallNote)
_encoder = msgspec.json.Encoder()


def note_bytes(note: StartNote | CallNote, *, shorter: tuple[Form, ...] | None = None) -> bytes:
    """Return ``note`` as JSON; with the forms ``shorter``, those of the answer alone, if it would be too long."""
    encoded = _encoder.encode(note)
    if shorter is None or len(encoded) <= MAX_NOTE_BYTES - _MAC_CHARACTERS:
        return encoded
    return _encoder.encode(msgspec.structs.replace(note, has_context=False, forms=shorter))


def signed(note: bytes, sealer: Sealer, trajectory_id: str, seq: int, value: bytes) -> bytes:
    """Return the header of an event: ``note`` with its signature. ``value``: the record's value."""
    mac = sealer.mac(_about(trajectory_id, seq), note + hashlib.sha256(value).digest())
    return binascii.hexlify(mac) + b" " + note


def read_note(kind: type[_Note], header: bytes, sealer: Sealer, trajectory_id: str, seq: int, value: bytes) -> _Note:
    """Return the note in ``header``.

    Raises ``ValueError`` unless a gateway with one of the secrets wrote it for this event.
    """
    mac, separator, note = header.partition(b" ")
    if not separator or len(header) > MAX_NOTE_BYTES:
        raise ValueError("the event has no note")
    if not sealer.is_mac(binascii.unhexlify(mac), _about(trajectory_id, seq), note + hashlib.sha256(value).digest()):
        raise ValueError("the note is not signed with this gateway's secret")
    return msgspec.json.decode(note, type=kind)


def forms_of(messages: Sequence[Message], chat: Sequence[Mapping[str, Any]], first: int = 0) -> tuple[Form, ...] | None:
    """Return the forms of ``messages[first:]`` that :func:`message_of` needs; ``None`` if they are too many.

    ``chat``: all ``messages`` in the format of chat completions.
    """
    found: list[Form] = []
    blocks = 0
    for at in range(first, len(messages)):
        message, plain = messages[at], message_of(chat[at], None)
        if _same(message, plain):
            continue
        blocks += len(message.texts)
        if len(found) == MAX_FORMS or blocks > MAX_BLOCKS:
            return None
        is_summary = message.role is MessageRole.SUMMARY
        form = Form(
            at,
            message.role,
            tuple(map(len, message.texts)),
            message.answers,
            message.failed,
            message.echoed[:1] if is_summary else (),
        )
        if message_of(chat[at], form).digest != message.digest:
            form = msgspec.structs.replace(form, digest=message.digest)
        found.append(form)
    return tuple(found)


def message_of(chat: Mapping[str, Any], form: Form | None) -> Message:
    """Return a message of an event. What is lost: the ids that clients echoed beside an answer.

    Raises ``ValueError`` or ``LookupError`` if ``chat`` is not what the gateway writes.
    """
    text = chat["content"]
    texts = (text,) if text else ()
    reasoning = chat.get("reasoning", "")
    calls = tuple(_calls(chat.get("tool_calls", ())))
    if form is None:
        return Message.of(MessageRole(chat["role"]), texts, calls, reasoning=reasoning)
    message = Message.of(
        form.role,
        tuple(_blocks(text, form.blocks)),
        calls,
        answers=form.answers,
        failed=form.failed,
        reasoning=reasoning,
        echoed=form.echoed,
    )
    return replace(message, digest=form.digest) if form.digest else message


def _same(message: Message, plain: Message) -> bool:
    return message.role is plain.role and message.texts == plain.texts and message.digest == plain.digest


def _calls(entries: Sequence[Mapping[str, Any]]) -> Iterator[Call]:
    for entry in entries:
        function = entry["function"]
        yield call_of(entry["id"], function["name"], function["arguments"], "tool_calls")


def _blocks(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """Yield the blocks that were joined by line ends."""
    at = 0
    for length in lengths:
        yield text[at : at + length]
        at += length + 1


def _about(trajectory_id: str, seq: int) -> str:
    return f"{seq} {trajectory_id}"
