"""Records of a gateway → what each of them tells a gateway that starts."""

from array import array
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from headrace.agents.gateway.canonical import Message
from headrace.agents.gateway.nodes import Answer
from headrace.agents.gateway.note import CallNote, StartNote, message_of, read_note
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.terms import Terms
from headrace.schemas.arrays import IntArray, decode_array
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ModelCalled, Purpose, Role, ToolCalled, ToolReturned, TrajectoryStarted
from headrace.schemas.ids import SEPARATOR

EVENT_BYTES: Final = 600
"""Memory of an event, without tokens and texts."""


class Started(msgspec.Struct):
    """Fields of ``trajectory.started``."""

    role: Role
    consent: bool
    tenant: str
    sample_rate: float
    parent_trajectory_id: str | None
    purpose: Purpose = Purpose.TRAIN


class _Called(msgspec.Struct):
    call_id: str
    choice: int
    prefix_length: int
    prefix_sha256: str | None
    context_ids: str | None
    sampled_ids: str | None
    finish_reason: str
    delivered: bool | None
    messages: list[msgspec.Raw] | None


class _Tool(msgspec.Struct):
    call_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class Start:
    """``trajectory.started``."""

    note: StartNote
    fact: Started

    @property
    def session_id(self) -> str:
        """Its session, which several scopes share."""
        return self.note.scope.partition(SEPARATOR)[0]

    @property
    def terms(self) -> Terms:
        """Those of its session, or narrower ones."""
        fact = self.fact
        return Terms(True, fact.consent, self.note.masked, fact.sample_rate, fact.purpose)


@dataclass(frozen=True, slots=True)
class Call:
    """``model.called``; axis legend: C context tokens after the prefix."""

    time_ms: int
    note: CallNote
    call_id: str
    choice: int
    prefix: tuple[int, str | None]
    """Length and hash of the prefix; length 0 if there is none."""
    context_ids: IntArray
    """(C,) int32."""
    context: tuple[Message, ...] | None
    """Messages after the prefix; ``None`` if they cannot be told from the event."""
    answer: Answer | None
    """Without log-probabilities and versions, which are on record. An aborted answer has its tokens in the context.
    ``None`` for a masked call."""

    @property
    def bytes(self) -> int:
        """Memory of its tokens and texts."""
        if self.answer is None:
            return 0
        messages = (*(self.context or ()), self.answer.message)
        return 4 * (len(self.context_ids) + len(self.answer.sampled_ids)) + sum(each.characters for each in messages)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``tool.called`` or ``tool.returned``."""

    time_ms: int
    call_id: str
    tool: str
    has_returned: bool


Event: TypeAlias = Start | Call | ToolUse
"""An event that tells more than that its number is taken."""

_started = msgspec.json.Decoder(Started).decode
_called = msgspec.json.Decoder(_Called).decode
_tool = msgspec.json.Decoder(_Tool).decode


def read_event(envelope: Envelope, note: bytes, value: bytes, sealer: Sealer, *, is_own: bool) -> Event | None:
    """Return what a record tells; ``None`` if that is only that its number is taken. ``is_own``: whether this gateway
    wrote it; of others only answers count.

    Raises ``ValueError`` if the note was not signed with one of the secrets of ``sealer``, or the payload is not what a
    gateway writes.
    """
    assert envelope.sequence is not None
    place = (sealer, envelope.subject, envelope.sequence, value)
    try:
        if envelope.type == ModelCalled.TYPE:
            return _call(envelope.time_ms, read_note(CallNote, note, *place), _called(value))
        if is_own and envelope.type == TrajectoryStarted.TYPE:
            return Start(read_note(StartNote, note, *place), _started(value))
        if is_own and envelope.type in (ToolCalled.TYPE, ToolReturned.TYPE):
            tool = _tool(value)
            return ToolUse(envelope.time_ms, tool.call_id, tool.tool, envelope.type == ToolReturned.TYPE)
    except (msgspec.MsgspecError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{envelope.type} of {envelope.subject}: {error}") from error
    return None


def _call(time_ms: int, note: CallNote, fact: _Called) -> Call:
    context, answer = None, None
    if fact.context_ids is not None and fact.sampled_ids is not None and fact.messages:
        forms = {form.at: form for form in note.forms}
        last = len(fact.messages) - 1
        answer = Answer(
            message_of(_decoded(fact.messages[last]), forms.get(last)),
            decode_array(fact.sampled_ids, "i"),
            None,
            finish_reason=fact.finish_reason,
            ends_with_stop_token=note.ends_with_stop_token,
            delivered=fact.delivered,
        )
        if note.has_context:
            context = tuple(message_of(_decoded(fact.messages[at]), forms.get(at)) for at in range(last))
    return Call(
        time_ms=time_ms,
        note=note,
        call_id=fact.call_id,
        choice=fact.choice,
        prefix=(fact.prefix_length, fact.prefix_sha256),
        context_ids=array("i") if fact.context_ids is None else decode_array(fact.context_ids, "i"),
        context=context,
        answer=answer,
    )


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found
