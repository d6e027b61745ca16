"""Descriptions and JSON Schemas of the headers of a record, for users who read the topics without headrace's code.

:mod:`headrace.schemas.envelope` reads and writes the CloudEvents attributes.
"""

from typing import Any

from headrace.schemas import envelope

REDRIVE = "headrace_redrive"
"""On a record that was redriven: ``dead-letters:PARTITION:OFFSET`` of the dead letter."""

REDRIVE_OF = "headrace_redrive_of"
"""On every event of a redriven trajectory: the original trajectory's id."""

ROLLOUTS = "headrace_rollouts"
"""On training groups: counts of the run's rollouts since the previous training group (``schemas/rollouts.py``)."""

GATEWAY = "headrace_gateway"
"""On events of gateways: a signed note for gateways that start (``agents/gateway/note.py``)."""

REQUIRED = (envelope.SPEC_VERSION, envelope.ID, envelope.TYPE, envelope.SOURCE, envelope.TIME, envelope.SUBJECT)
"""Headers that every record has."""

HEADERS: dict[str, dict[str, Any]] = {
    envelope.SPEC_VERSION: {"type": "string", "const": "1.0", "description": "Version of CloudEvents."},
    envelope.ID: {
        "type": "string",
        "description": "Id of the record: a UUIDv7 on facts; on derived records, derived from their inputs. "
        "Records with equal ids are the same record, written twice.",
    },
    envelope.TYPE: {"type": "string", "description": "Type of the payload, with its version."},
    envelope.SOURCE: {"type": "string", "description": "Program that wrote the record, as a URI reference."},
    envelope.TIME: {
        "type": "string",
        "format": "date-time",
        "description": "When it happened (facts), or the stream time of the inputs (derived records). UTC.",
    },
    envelope.SUBJECT: {
        "type": "string",
        "description": "Id of the trajectory, group, run or engine that the record is about.",
    },
    envelope.SEQUENCE: {
        "type": "string",
        "pattern": "^[0-9]+$",
        "description": "Position in the trajectory, from 0. On events only; a number that never arrives is a gap.",
    },
    envelope.TRACEPARENT: {
        "type": "string",
        "description": "W3C trace context; derived records continue the trace of their inputs.",
    },
    envelope.CONTENT_TYPE: {"type": "string", "const": "application/json", "description": "Format of the value."},
    REDRIVE: {
        "type": "string",
        "description": "On redriven records: dead-letters:PARTITION:OFFSET of the dead letter.",
    },
    REDRIVE_OF: {
        "type": "string",
        "description": "On events of a closed trajectory that was redriven as a new one: the original trajectory's id.",
    },
    GATEWAY: {
        "type": "string",
        "description": "On `trajectory.started` and `model.called` of a gateway: a signature and, after a space, JSON "
        "with keys of the conversation, by which a gateway that starts continues it. Other readers ignore it.",
    },
    ROLLOUTS: {
        "type": "string",
        "contentMediaType": "application/json",
        "description": "On training groups: counts of the run's rollouts, trained or not, that were decided since the "
        "previous training group from the same partition of `rewards`, including this group's own: an object with "
        "`scored`, `reward_sum`, `groups`, and the groups without variance as `all_success`, `all_fail`, `all_equal`.",
    },
}
"""Headers by name. Values are UTF-8."""
