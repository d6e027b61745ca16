"""Bounds of what comes from outside: every time, number and name has one, where it enters.

They are checks beside the types and not part of the JSON Schemas: a published schema never narrows, and no reader may
count on a record that no process of ours accepts. A value beyond its bound makes the record unreadable: it goes to
``dead-letters``. The bounds are far enough below 64 bits that nothing that is added up or added to overflows.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Gt
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_TIME_MS = 7_258_118_400_000
"""Every time in a record is before the year 2200, in Unix milliseconds: with any window or timeout added it is still a
date that Python and ClickHouse can write."""

MAX_COUNT = 2**31 - 1
"""Largest count in an event: tokens, a policy version."""

MAX_STEPS = 65_535
"""Largest number of steps that one event reports: a trajectory has at most 65,536 events, so their sum fits 32 bits."""

MAX_TOTAL = 2**53
"""Largest sum in a derived record; every JSON reader takes it exactly."""

MAX_OFFSET = 2**63 - 1
"""Largest offset that Kafka has."""

MAX_SECONDS = 1e9
"""Longest duration, in seconds: some thirty years."""

MAX_NAME = 512
"""Longest id, key or label, in characters."""


@dataclass(frozen=True, slots=True)
class Within:
    """A number of at most this magnitude; NaN has none."""

    limit: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: float) -> float:
        if not -self.limit <= value <= self.limit:
            raise ValueError(f"must be within ±{self.limit:,}")
        return value


@dataclass(frozen=True, slots=True)
class Short:
    """A text of at most so many characters."""

    limit: int = MAX_NAME

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str) -> str:
        if len(value) > self.limit:
            raise ValueError(f"has {len(value):,} characters: at most {self.limit:,} are taken")
        return value


Name: TypeAlias = Annotated[str, Short()]
"""An id, a key or a label."""
Count: TypeAlias = Annotated[int, Ge(0), Within(MAX_COUNT)]
"""A count in an event."""
PositiveCount: TypeAlias = Annotated[int, Gt(0), Within(MAX_COUNT)]
"""A count that is never 0."""
Total: TypeAlias = Annotated[int, Ge(0), Within(MAX_TOTAL)]
"""A count in a derived record."""
Offset: TypeAlias = Annotated[int, Ge(0), Within(MAX_OFFSET)]
"""A place in a partition."""
Seconds: TypeAlias = Annotated[float, Ge(0), Within(MAX_SECONDS)]
"""A duration, in seconds."""
UnixMs: TypeAlias = Annotated[int, Ge(0), Within(MAX_TIME_MS - 1)]
"""A time, in Unix milliseconds."""


def is_time(unix_ms: int) -> bool:
    """Whether ``unix_ms``, Unix milliseconds, is a time that a record may have."""
    return 0 <= unix_ms < MAX_TIME_MS
