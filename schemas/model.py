"""What every payload has in common: immutable, typed, tolerant of fields from the future, and without a number that is
not finite (``schemas/finite.py``).

A list ends with its first bad element: what is wrong with a payload must not cost more than reading it. (One MiB of
``{}`` in a list of spans took five seconds and a million errors.)
"""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

_CONFIG = ConfigDict(
    frozen=True,
    extra="allow",
    use_attribute_docstrings=True,
    allow_inf_nan=False,
    # What no validator has seen (free-form JSON, `model_copy`) must not become null without a word: `wire.encode` finds
    # the constants, and refuses them.
    ser_json_inf_nan="constants",
)


def _fail_fast(schema: Any) -> None:
    """Have every list in ``schema`` stop at its first error, in place."""
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
    """A payload with a type of its own on the wire: a fact that an agent emitted or a record derived from facts."""

    TYPE: ClassVar[str]
    """The CloudEvents type, its version in the name: ``headrace.tool.called.v1``."""


class Part(_Tolerant):
    """A piece of a payload: never on the wire by itself. Unknown fields survive here too."""
