"""What every payload has in common: immutable, typed, and tolerant of fields from the future."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A payload with a type of its own on the wire: a fact that an agent emitted or a record derived from facts."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    TYPE: ClassVar[str]
    """The CloudEvents type, its version in the name: ``headrace.tool.called.v1``."""


class Part(BaseModel):
    """A piece of a payload: never on the wire by itself. Unknown fields survive here too."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)
