"""Base classes of payloads: immutable, typed, tolerant of unknown fields, and limited to finite numbers
(``schemas/finite.py``).

Validation of a list stops at its first invalid element, so that rejecting a payload costs no more than reading it. (One
MiB of ``{}`` in a list of spans took five seconds and produced a million errors.)
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

_CONFIG = ConfigDict(
    frozen=True,
    extra="allow",
    use_attribute_docstrings=True,
    allow_inf_nan=False,
    # Values that no validator checked (free-form JSON, `model_copy`) must not silently become null: `wire.encode` finds
    # the constants and refuses them.
    ser_json_inf_nan="constants",
)


def _fail_fast(schema: Any) -> None:
    """Make validation of every list in ``schema`` stop at its first error; changes ``schema`` in place."""
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            _fail_fast(part)
    if isinstance(schema, dict) and schema.get("type") == "list":
        schema["fail_fast"] = True


class _Tolerant(BaseModel):
    """Immutable; keeps unknown fields."""

    model_config = _CONFIG

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


class Record(_Tolerant):
    """A payload with its own type on the wire: a fact emitted by an agent, or a record derived from facts."""

    TYPE: ClassVar[str]
    """The CloudEvents type, with its version: ``headrace.tool.called.v1``."""


class Part(_Tolerant):
    """A part of a payload, which never occurs on the wire by itself. Unknown fields are kept here too."""
