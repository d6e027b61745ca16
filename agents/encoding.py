"""Encodes an event as a Kafka record: masks, validates, serialises and measures it, on the sender's thread."""

import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from pydantic import ValidationError

from headrace.agents.host_values import SLICE, array_size
from headrace.agents.json_form import JsonForm, TooLarge, is_int64
from headrace.agents.masking.masker import EventMask, Masker
from headrace.agents.raised import Raised, type_name
from headrace.schemas.arrays import ArrayType, decode_array
from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.events import FACTS, ModelCalled
from headrace.schemas.hidden import TOKEN_FIELDS, hidden_tokens
from headrace.schemas.ids import uuid7
from headrace.schemas.model import Record
from headrace.schemas.shape import OBJECT, AnyJson, Choice, FieldType, ListOf, Tokens, shape_of
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

SURROGATE = "surrogate"
"""Kind under which an event with invalid Unicode is counted; ``?`` replaces the invalid characters."""

TOKENS_HIDDEN = "tokens_hidden"
"""Kind under which a model call is counted whose tokens were left out, because their text must be hidden or is not
known."""

_IDS = ("context_ids", "sampled_ids")
"""Token ids of a model call, in the order of its text."""


class Note(NamedTuple):
    """An event as queued by the host's thread: only references, nothing computed."""

    topic: Topic
    """Destination."""
    trajectory_id: str
    """Key and subject."""
    seq: int | None
    """Position in the trajectory; ``None`` on feedback."""
    time_ns: int
    """When it happened, Unix nanoseconds."""
    context: Context
    """The host's OpenTelemetry context at the call, with the active span, if any."""
    model: type[Record]
    """Type of the payload."""
    fields: dict[str, Any]
    """Fields of the payload, not yet validated."""
    event_id: str | None = None
    """Id of the event, if it is derived; ``None``: a new one."""


NoteFields: TypeAlias = tuple[Topic, str, int | None, int, Context, type[Record], dict[str, Any]] | Note
"""A :class:`Note` as created by the host's thread: a plain tuple costs a sixth of a named one."""


class Pieces(NamedTuple):
    """Texts of a stream, which are joined on the sender's thread."""

    texts: tuple[str, ...]


class InvalidEvent(ValueError):
    """The fields are not valid for the event; the message names the field and the problem."""


class Encoded(NamedTuple):
    """An encoded event."""

    message: Message
    """The Kafka record."""
    altered: dict[str, int]
    """Number of values in another form than the host gave, by kind: ``unserialisable``, ``surrogate``."""
    described: str
    """Type of the first described value; empty if there is none."""
    failure: str = ""
    """Why a text could not be masked and was hidden whole; empty if all could."""


class _Huge:
    """Placeholder for a list or dict that is too large for any event, so that it is neither copied nor read."""


HUGE: Final = _Huge()

_ENUMS = frozenset(
    field.type.enum for fact in FACTS for field in shape_of(fact).fields if isinstance(field.type, Choice)
)
"""Enums of events, whose values can be used as they are."""


def encode_note(note: Note, source: str, limit: int, masker: Masker | None = None) -> Encoded:
    """Encode ``note`` as a Kafka record from ``source``; ``masker`` hides parts of its texts and identifiers.

    Fields for any JSON (``result``, ``arguments``, ``messages``, ``answer``, ``task``, and fields that are unknown to
    the event's type) are written by :class:`~headrace.agents.json_form.JsonForm`, which replaces values that it must
    not read by descriptions. Other fields have a type that does not allow a description: if the value has another type,
    is an iterator, is not a finite number or needs more than 64 bits, :class:`InvalidEvent` is raised and names the
    field. Raises ``TooLarge`` if the payload exceeds ``limit`` bytes.
    """
    model, mask = note.model, None if masker is None else masker.event()
    form = JsonForm(limit, mask)
    try:
        typed, written = _fields(note, form, mask, limit)
        if mask is not None:
            _record_masks(note, typed, form, mask)
            for name in typed.keys() & written.keys():
                del written[name]  # what the SDK knows about masks, not what the host says
        payload = model.model_validate(typed)
        value = payload.model_dump_json(exclude=set(written))
    except TooLarge:
        raise
    except InvalidEvent as error:
        raise InvalidEvent(f"{model.TYPE}: {error}") from error
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)[:3]
        text = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise InvalidEvent(f"{model.TYPE}: {text}") from error
    except Exception as error:  # a class that pretends to be a plain one
        raise InvalidEvent(f"{model.TYPE}: {type_name(type(error))}") from error
    body, broken = _bytes("".join((value[:-1], *_members(written, value == "{}"), "}")))
    if len(body) > limit:
        raise TooLarge
    trajectory_id = note.trajectory_id if mask is None else mask.identifier(note.trajectory_id)
    envelope = Envelope(
        id=note.event_id or uuid7(),
        type=model.TYPE,
        source=source,
        time_ms=note.time_ns // 1_000_000,
        subject=trajectory_id,
        sequence=note.seq,
        traceparent=traceparent(note.context),
    )
    altered = form.altered + Counter({SURROGATE: broken})
    message = Message(trajectory_id.encode(), body, to_headers(envelope))
    return Encoded(message, dict(altered), form.described, "" if mask is None else mask.failure)


def _fields(note: Note, form: JsonForm, mask: EventMask | None, limit: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields that the model validates, and the JSON texts of the others."""
    typed: dict[str, Any] = {}
    written: dict[str, str] = {}
    types = _types(note.model)
    for name, value in note.fields.items():
        form_of = _forms(note.model).get(name)
        if value is HUGE:
            raise TooLarge
        if type(value) is Pieces:
            value = "".join(value.texts)
        if type(value) is Raised:
            plain = value.plain(mask)  # masked already: a mask need not leave its own result unchanged
            unmasked = JsonForm(limit)
            if form_of in ("any", "object", "objects"):
                written[name] = unmasked.text(plain)
            else:
                typed[name] = plain
        elif form_of is None:
            written[_unused(name if mask is None else mask.text(name), written, types)] = form.text(value)
        elif isinstance(form_of, ArrayType):
            typed[name] = _numbers(form_of, name, value, limit)
        elif form_of == "typed":
            found = _typed(form if mask is None else form.unmasked(), note.model, name, value)
            typed[name] = found if mask is None else mask.typed(found, types[name])
        else:
            written[name] = _open(form, name, value, form_of)
    return typed, written


def _record_masks(note: Note, typed: dict[str, Any], form: JsonForm, mask: EventMask) -> None:
    """Add to ``typed`` what was hidden, and remove the token ids of a model call if their text must be hidden."""
    has_tokens = note.model is ModelCalled and any(typed.get(name) is not None for name in TOKEN_FIELDS)
    if has_tokens and (mask.counts or not mask.permits(note.trajectory_id, _token_ids(typed))):
        mask.hide_tokens_of(note.trajectory_id)
        typed |= hidden_tokens(also=typed.get("hidden") or ())
        form.altered[TOKENS_HIDDEN] += 1
    if mask.counts:
        typed["masked"] = {str(kind): count for kind, count in sorted(mask.counts.items())}


def _token_ids(typed: dict[str, Any]) -> "array[int]":
    """Return the tokens of a model call, in order; a wire form is decoded. Raises ``ValueError`` for one that is not
    valid."""
    ids = array("i")
    for name in _IDS:
        value = typed.get(name)
        if value is not None:
            ids.extend(decode_array(value, "i") if type(value) is str else value)
    return ids


def traceparent(context: Context) -> str | None:
    """Return the W3C trace context of the span in ``context``; ``None`` if there is no valid one."""
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


@lru_cache
def _forms(model: type[Record]) -> dict[str, ArrayType | str]:
    """Return how each field of ``model`` is encoded: an array type, ``any``, ``object``, ``objects`` or ``typed``."""
    open_forms = {AnyJson(): "any", OBJECT: "object", ListOf(OBJECT): "objects"}
    return {
        field.name: field.type.array if isinstance(field.type, Tokens) else open_forms.get(field.type, "typed")
        for field in shape_of(model).fields
    }


@lru_cache
def _types(model: type[Record]) -> dict[str, FieldType]:
    """Return the type of each field of ``model``."""
    return {field.name: field.type for field in shape_of(model).fields}


def _unused(name: str, written: dict[str, str], types: dict[str, FieldType]) -> str:
    """Return a name for an unknown field that no field has: a masked name may be equal to another one."""
    found, number = name, 2
    while found in written or found in types:
        found, number = f"{name} ({number})", number + 1
    return found


def _open(form: JsonForm, name: str, value: Any, shape: str) -> str:
    """Return the JSON text of a field for any JSON, an object, or a list of objects."""
    if shape == "objects" and value is not None:
        items = list(value) if type(value) in (list, tuple) else [value]
        texts = [_open(form, f"{name}.{place}", item, "object") for place, item in enumerate(items)]
        return f"[{','.join(texts)}]"
    text = form.text(value)
    if shape == "object" and text[0] != "{":
        raise InvalidEvent(f"{name}: expected a dict, not {type_name(type(value))}")
    return text


def _typed(form: JsonForm, model: type[Record], name: str, value: Any) -> Any:
    """Return ``value`` as plain values that the model can validate."""
    kind = type(value)
    if value is model.model_fields[name].default or kind is bool or kind in _ENUMS:
        return value
    if kind is str:
        form.reserve(len(value))
        if value.isascii():
            return value
        text, broken = _bytes(value)
        form.altered[SURROGATE] += broken
        return text.decode()
    if kind is float:
        if not math.isfinite(value):
            raise InvalidEvent(f"{name}: {value} is not a finite number")
        return value
    if kind is int:
        if not is_int64(value):
            raise InvalidEvent(f"{name}: the number needs more than 64 bits")
        return value
    return json.loads(form.text(value))


def _numbers(form: ArrayType, name: str, value: Any, limit: int) -> Any:
    """Convert ``value`` to an array, slice by slice; the wire form, arrays of the right type and ``None`` are returned
    unchanged."""
    kind = type(value)
    if value is None or (kind is str and len(value) <= limit) or (kind is array and value.typecode == form.typecode):
        return value
    if kind in (list, tuple, array):
        length = len(value)
    elif (size := array_size(value, kind)) is not None and value.ndim == 1:
        length = size
    else:
        raise InvalidEvent(f"{name}: expected a list or an array of numbers, not {type_name(kind)}")
    if length > limit:
        raise TooLarge
    numbers = array(form.typecode)
    for start in range(0, length, SLICE):
        items = value[start : start + SLICE]
        items = items if kind in (list, tuple, array) else items.tolist()
        if not set(map(type, items)) <= {int, float, bool}:
            items = [_number(name, item) for item in items]
        try:
            numbers.extend(items)
        except (TypeError, OverflowError) as error:
            raise InvalidEvent(f"{name}: {error}") from error
        time.sleep(0)
    return numbers


def _number(name: str, item: Any) -> Any:
    kind = type(item)
    if kind in (int, float, bool):
        return item
    if array_size(item, kind) != 1:
        raise InvalidEvent(f"{name}: expected numbers, not {type_name(kind)}")
    return item.item()


def _members(written: dict[str, str], first: bool) -> Iterator[str]:
    """Yield ``written`` as JSON object members, each preceded by a comma, except a member that comes ``first``."""
    for name, text in written.items():
        yield f"{'' if first else ','}{encode_basestring(name)}:{text}"
        first = False


def _bytes(text: str) -> tuple[bytes, int]:
    """Return ``text`` as UTF-8, and 1 if it had to be changed, otherwise 0."""
    try:
        return text.encode(), 0
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace"), 1
