"""Rewards of the continuations of a trajectory that ended in order to be continued, until its own reward follows.

    parent ends after turn 3, continuations: 2     in its group, without a total: it waits
      ├─ continuation a   total 1.0                {"kind":"continued","family":["run","search@1","parent"],
      └─ continuation b   total 0.0                 "totals":{"a":[0,1.0],"b":[0,0.0]},"heard_ms":…}
    both are scored                                the parent's total: 0.5

Only under the setting ``forked_prefix: once``, where the parent's tokens are trained by the parent. Pure.
"""

from enum import StrEnum
from typing import Self, TypeAlias

import msgspec

MAX_CONTINUATIONS = 1024
"""Most continuations of one parent whose rewards count."""

PARENT = 2
"""Place of the parent's trajectory id in a family."""

Family: TypeAlias = tuple[str, ...]
"""Run, reward spec with its version, the parent's trajectory id and, if there is one, tenant: rewards of another
tenant, run or spec never count for the parent."""


class ForkedPrefix(StrEnum):
    """Whether the tokens of a trajectory that ended in order to be continued are trained."""

    NEVER = "never"
    """Not at all: the parent is rejected as ``forked``."""
    ONCE = "once"
    """Once, by the parent: its reward is the mean of its continuations' rewards."""


class Continued(msgspec.Struct, frozen=True, tag_field="kind", tag="continued"):
    """The rewards of one parent's continuations so far."""

    family: Family
    """Whose continuations they are."""
    totals: dict[str, tuple[int, float | None]] = {}
    """Continuation, as ``remembered``, → revision and total of its newest reward."""
    heard_ms: int = 0
    """Stream time of the last of them, Unix milliseconds."""

    def hearing(self, trajectory_id: str, revision: int, total: float | None, now_ms: int) -> Self:
        """Returns the rewards with one more. An older revision, and continuations beyond :data:`MAX_CONTINUATIONS`,
        change nothing."""
        known = self.totals.get(trajectory_id)
        if known is not None and known[0] >= revision:
            return self
        if known is None and len(self.totals) >= MAX_CONTINUATIONS:
            return self
        totals = self.totals | {trajectory_id: (revision, total)}
        return type(self)(self.family, totals, max(self.heard_ms, now_ms))

    @property
    def mean(self) -> float | None:
        """Mean total of those that have one; ``None`` if none has."""
        totals = [total for _, total in self.totals.values() if total is not None]
        return sum(totals) / len(totals) if totals else None


def continued_key(family: Family) -> tuple[str, ...]:
    """Returns the key of a parent's entry in the state topic."""
    return "continued", *family
