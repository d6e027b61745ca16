"""Converts models to Kafka records and back: the envelope becomes headers, the payload JSON."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from headrace.schemas.envelope import BadTimeError, Envelope, EnvelopeError, Headers, from_headers, to_headers
from headrace.schemas.finite import NotFinite, refuse_not_finite
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import MODELS
from headrace.schemas.trace import continued
from headrace.schemas.upcast import UPCASTERS, Upcaster, upcast


class UnreadableRecord(ValueError):
    """A record that cannot be decoded; ``error`` is the kind of problem, for the dead letter."""

    def __init__(self, error: DeadLetterError, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded Kafka record."""

    key: bytes
    value: bytes
    headers: Headers


def _to_json(payload: Record) -> bytes:
    return payload.model_dump_json().encode()


def encode(payload: Record, *, key: str, envelope: Envelope, to_json: Callable[[Any], bytes] = _to_json) -> Message:
    """Encode ``payload`` as a Kafka record.

    ``to_json`` converts a payload that is not a model but has the fields of one, such as a struct; its numbers are
    finite, since encoders of structs write others as null.

    Raises ``ValueError`` if the envelope's type is not the payload's, and :class:`NotFinite` if the payload contains a
    number that is not finite.
    """
    if envelope.type != payload.TYPE:
        raise ValueError(f"the type of the envelope is {envelope.type}, that of the payload {payload.TYPE}")
    value = to_json(payload)
    if to_json is _to_json:
        refuse_not_finite(value)
    return Message(key.encode(), value, to_headers(envelope))


def record_message(
    payload: Record,
    *,
    id: str,
    key: str,
    source: str,
    time_ms: int,
    subject: str,
    origin: str | None = None,
    to_json: Callable[[Any], bytes] = _to_json,
) -> Message:
    """Encode a derived record as a Kafka record. ``id`` is derived from its inputs; ``time_ms`` is their stream time.

    ``origin`` is the ``traceparent`` of its input; the record continues that trace. ``to_json``: as for :func:`encode`.
    """
    envelope = Envelope(
        id=id,
        type=payload.TYPE,
        source=source,
        time_ms=time_ms,
        subject=subject,
        traceparent=continued(origin, id),
    )
    return encode(payload, key=key, envelope=envelope, to_json=to_json)


def decode(
    headers: Iterable[tuple[str, bytes | None]],
    value: bytes | None,
    models: Mapping[str, type[Record]] = MODELS,
    upcasters: Mapping[str, Upcaster] = UPCASTERS,
) -> tuple[Envelope, Record]:
    """Decode the envelope and the payload of a Kafka record, converting an old version to the newest.

    Raises :class:`UnreadableRecord`, which describes the problem with headers, type, JSON or fields.
    """
    envelope = envelope_of(headers)
    return envelope, decode_payload(envelope.type, value, models, upcasters)


def envelope_of(headers: Iterable[tuple[str, bytes | None]]) -> Envelope:
    """Decode the envelope of a Kafka record; raise :class:`UnreadableRecord` if its headers are invalid."""
    try:
        return from_headers(headers)
    except BadTimeError as error:
        raise UnreadableRecord(DeadLetterError.BAD_TIME, str(error)) from error
    except EnvelopeError as error:
        raise UnreadableRecord(DeadLetterError.BAD_HEADERS, str(error)) from error


def decode_payload(
    type_name: str,
    value: bytes | None,
    models: Mapping[str, type[Record]] = MODELS,
    upcasters: Mapping[str, Upcaster] = UPCASTERS,
) -> Record:
    """Decode the payload of a record of type ``type_name``; raise :class:`UnreadableRecord` if it is invalid."""
    if value is None:
        raise UnreadableRecord(DeadLetterError.NULL_VALUE, f"{type_name}: the value is null")
    if type_name not in models and type_name not in upcasters:
        raise UnreadableRecord(DeadLetterError.UNKNOWN_TYPE, f"no model for type {type_name[:200]}")
    try:
        refuse_not_finite(value)
        if type_name in models:
            return models[type_name].model_validate_json(value)
        current, fields = upcast(type_name, _json_object(type_name, value), upcasters)
        return models[current].model_validate(fields)
    except NotFinite as error:
        raise UnreadableRecord(DeadLetterError.INVALID, f"{type_name}: {error}") from error
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        kinds = {problem["type"] for problem in found}
        kind = DeadLetterError.BAD_JSON if "json_invalid" in kinds else DeadLetterError.INVALID
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ") for problem in found[:5]
        )
        raise UnreadableRecord(kind, f"{type_name}: {problems}") from error


def _json_object(type_name: str, value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(DeadLetterError.BAD_JSON, f"{type_name}: {error}") from error
    if not isinstance(fields, dict):
        raise UnreadableRecord(DeadLetterError.INVALID, f"{type_name}: expected an object, not {type(fields).__name__}")
    return fields
