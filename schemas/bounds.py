"""Bounds of the times, numbers and names in records, checked where a record enters the system.

The bounds are checked in addition to the types and are not part of the JSON Schemas, because a published schema never
narrows. A record with a value beyond its bound is unreadable and goes to ``dead-letters``. The bounds are far enough
below 64 bits that no sum of such values overflows.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Gt
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_TIME_MS = 7_258_118_400_000
"""Times in records are before the year 2200, in Unix milliseconds: with any window or timeout added, the result is
still a date that Python and ClickHouse can represent."""

MAX_COUNT = 2**31 - 1
"""Largest count in an event: tokens, a policy version."""

MAX_STEPS = 65_535
"""Largest number of steps in one event: a trajectory has at most 65,536 events, so the sum fits 32 bits."""

MAX_TOTAL = 2**53
"""Largest sum in a derived record; every JSON reader represents it exactly."""

MAX_OFFSET = 2**63 - 1
"""Largest offset in Kafka."""

MAX_SECONDS = 1e9
"""Longest duration, in seconds: about thirty years."""

MAX_NAME = 512
"""Longest id, key or label, in characters."""


@dataclass(frozen=True, slots=True)
class Within:
    """Limits the magnitude of a number; NaN is rejected."""

    limit: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: float) -> float:
        if not -self.limit <= value <= self.limit:
            raise ValueError(f"must be within ±{self.limit:,}")
        return value


@dataclass(frozen=True, slots=True)
class MaxLength:
    """Limits the length of a text, in characters."""

    limit: int = MAX_NAME

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str) -> str:
        if len(value) > self.limit:
            raise ValueError(f"has {len(value):,} characters: at most {self.limit:,} are allowed")
        return value


Name: TypeAlias = Annotated[str, MaxLength()]
"""An id, a key or a label."""
Count: TypeAlias = Annotated[int, Ge(0), Within(MAX_COUNT)]
"""A count in an event."""
PositiveCount: TypeAlias = Annotated[int, Gt(0), Within(MAX_COUNT)]
"""A count that is never 0."""
Total: TypeAlias = Annotated[int, Ge(0), Within(MAX_TOTAL)]
"""A count in a derived record."""
Offset: TypeAlias = Annotated[int, Ge(0), Within(MAX_OFFSET)]
"""An offset in a partition."""
Seconds: TypeAlias = Annotated[float, Ge(0), Within(MAX_SECONDS)]
"""A duration, in seconds."""
Milliseconds: TypeAlias = Annotated[float, Ge(0), Within(1000 * MAX_SECONDS)]
"""A duration, in milliseconds."""
UnixMs: TypeAlias = Annotated[int, Ge(0), Within(MAX_TIME_MS - 1)]
"""A time, in Unix milliseconds."""


def is_time(unix_ms: int) -> bool:
    """Return whether ``unix_ms`` (Unix milliseconds) is a valid time of a record."""
    return 0 <= unix_ms < MAX_TIME_MS
