"""Bounds in tokens on what is admitted, in addition to ``max_staleness``, which is in versions.

A policy can learn to avoid training by whatever gets a trajectory rejected for its length or age. Rejections are
therefore published by reason and version, which shows when a bound takes effect.
"""

from dataclasses import dataclass

_COUNTS = ("max_segment_tokens", "max_trajectory_tokens", "max_group_tokens")


@dataclass(frozen=True, slots=True)
class AdmissionBounds:
    """Settings of admission; by default nothing is bounded."""

    stale_after: int = 1
    """A sampled token is stale if the policy that is trained is more than this many versions ahead of it."""
    max_stale_share: float = 1.0
    """Share of a trajectory's sampled tokens that may be stale; above it, rejected as ``stale_tokens``."""
    max_segment_tokens: int | None = None
    """Tokens of a segment, context included; above it, rejected as ``too_long``. Unset: as many as the model takes."""
    max_trajectory_tokens: int | None = None
    """Tokens of a trajectory's trained segments, context included; above it, rejected as ``too_long``. What segments
    share counts in each."""
    max_group_tokens: int | None = None
    """Tokens of a group's admitted members, context included; above it, all are rejected as ``group_too_long``."""

    def __post_init__(self) -> None:
        if self.stale_after < 0:
            raise ValueError(f"stale_after is {self.stale_after}: it must not be negative")
        if not 0 <= self.max_stale_share <= 1:
            raise ValueError(f"max_stale_share is {self.max_stale_share}: it must be in [0, 1]")
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}: it must be at least 1; leave it out for no bound")
