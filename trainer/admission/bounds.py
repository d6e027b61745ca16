"""Bounds in tokens on what is admitted, beside ``max_staleness``, which is in versions.

A policy can bring about whatever is turned away for its length or its age: rejections are told by reason and version,
so that a bound that bites shows.
"""

from dataclasses import dataclass

_COUNTS = ("max_segment_tokens", "max_trajectory_tokens", "max_group_tokens")


@dataclass(frozen=True, slots=True)
class AdmissionBounds:
    """Settings; as they stand by default they bound nothing."""

    stale_after: int = 1
    """A sampled token is stale where the policy that is trained is more than this many versions ahead of it."""
    max_stale_share: float = 1.0
    """Share of a trajectory's sampled tokens that may be stale: rejected as ``stale_tokens`` beyond it."""
    max_segment_tokens: int | None = None
    """Tokens of a segment, context included: rejected as ``too_long`` beyond it. Unset: what the model can take."""
    max_trajectory_tokens: int | None = None
    """Tokens of all segments of a trajectory that are trained, context included: rejected as ``too_long`` beyond it."""
    max_group_tokens: int | None = None
    """Tokens of all that is left of a group, context included: rejected whole as ``group_too_long`` beyond it."""

    def __post_init__(self) -> None:
        if self.stale_after < 0:
            raise ValueError(f"stale_after is {self.stale_after}: it must not be negative")
        if not 0 <= self.max_stale_share <= 1:
            raise ValueError(f"max_stale_share is {self.max_stale_share}: it must be in [0, 1]")
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}: it must be at least 1; leave it out for no bound")
