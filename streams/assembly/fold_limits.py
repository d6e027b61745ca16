"""What the fold of one ``events`` partition may take: time (log time, not the wall's) and memory."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """Bounds of a partition's fold. A trajectory that reaches one is closed and labelled, never lost."""

    idle_timeout_ms: int = 600_000
    """A trajectory without an event for as long is closed."""
    hole_grace_ms: int = 5_000
    """How long an ended trajectory waits for events that are still missing."""
    max_event_bytes: int = (1024 + 16) * 1024
    """Largest event: key, payload and headers. The SDK sends payloads of up to 1 MiB."""
    max_trajectory_bytes: int = 16 * 1024 * 1024
    """Largest trajectory: memory that it takes."""
    max_trajectory_events: int = 65_536
    """Bound of sequence numbers."""
    max_gaps: int = 256
    """Most gaps in a trajectory's sequence numbers."""
    max_open: int = 50_000
    """Most trajectories open at a time."""
    max_open_bytes: int = 256 * 1024 * 1024
    """Most memory of all open trajectories together; beyond it the largest are closed."""
    remember: int = 20_000
    """Latest closed trajectories whose ids are remembered, to tell a duplicate from a new trajectory."""
    remember_bytes: int = 16 * 1024 * 1024
    """Most memory of what is remembered; beyond it fewer are."""
    max_remembered: int = 200_000
    """A restart reads what was written since the oldest open trajectory began; at so many, that one is closed."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            if getattr(self, setting.name) < 1:
                raise ValueError(f"{setting.name} must be at least 1, not {getattr(self, setting.name)}")
        if self.max_remembered < self.remember:
            raise ValueError(f"max_remembered ({self.max_remembered}) must be at least remember ({self.remember})")
