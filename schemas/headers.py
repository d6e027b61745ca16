"""The headers of a record, for people who read topics without our code: a sentence and a JSON Schema each.

:mod:`headrace.schemas.envelope` reads and writes the CloudEvents attributes; here they are described.
"""

from typing import Any

from headrace.schemas import envelope

REDRIVE = "headrace_redrive"
"""On a record that was a dead letter: ``dead-letters:PARTITION:OFFSET`` of the letter."""

REDRIVE_OF = "headrace_redrive_of"
"""On every event of a trajectory that was sent again: the id of the trajectory that it was."""

ROLLOUTS = "headrace_rollouts"
"""On training groups: all rollouts of the run that were decided since the one before (``schemas/rollouts.py``)."""

REQUIRED = (envelope.SPEC_VERSION, envelope.ID, envelope.TYPE, envelope.SOURCE, envelope.TIME, envelope.SUBJECT)
"""Headers that every record has."""

HEADERS: dict[str, dict[str, Any]] = {
    envelope.SPEC_VERSION: {"type": "string", "const": "1.0", "description": "Version of CloudEvents."},
    envelope.ID: {
        "type": "string",
        "description": "Names the record: a UUIDv7 on facts, derived from what it was made of on derived records. "
        "Equal ids are one record, written twice.",
    },
    envelope.TYPE: {"type": "string", "description": "Type of the payload, with its version."},
    envelope.SOURCE: {"type": "string", "description": "Who wrote it, as a URI reference."},
    envelope.TIME: {
        "type": "string",
        "format": "date-time",
        "description": "When it happened (facts), or the log time of what it was made of (derived records). UTC.",
    },
    envelope.SUBJECT: {
        "type": "string",
        "description": "What it is about: a trajectory's id, else a group, run or engine.",
    },
    envelope.SEQUENCE: {
        "type": "string",
        "pattern": "^[0-9]+$",
        "description": "Position in the trajectory, from 0. On events only; a number that never comes is a hole.",
    },
    envelope.TRACEPARENT: {
        "type": "string",
        "description": "W3C trace context; derived records continue the trace of what they were made of.",
    },
    envelope.CONTENT_TYPE: {"type": "string", "const": "application/json", "description": "Form of the value."},
    REDRIVE: {
        "type": "string",
        "description": "dead-letters:PARTITION:OFFSET of the dead letter that the record was before it was sent again.",
    },
    REDRIVE_OF: {
        "type": "string",
        "description": "On events of a trajectory that was sent again as a new one: the id that it had.",
    },
    ROLLOUTS: {
        "type": "string",
        "contentMediaType": "application/json",
        "description": "On training groups: rollouts of the run, trained or not, that were decided since the training "
        "group before it from the same partition of `rewards`, this one's included: an object with `scored`, "
        "`reward_sum`, `groups`, and the groups without variance as `all_success`, `all_fail`, `all_equal`.",
    },
}
"""By name. Values are UTF-8."""
