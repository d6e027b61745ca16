"""What the fold of one ``events`` partition may take: time (log time, not the wall's) and memory.

    log time       0 s    20 s    40 s    ── Kafka is away ──    700 s    720 s
    counted        0 s    20 s    40 s                           100 s    120 s

A trajectory waits in time as it counts: the gap before a record counts for a tenth of the timeout at most (a second is
never too much). The log cannot tell an outage from silence, in which agents could have written and did not; the
assembler can, and writes ``clock.ticked`` into a silent partition with open trajectories, more often than that. So
silence passes, and what could not be written is waited for. It follows from the records alone.
"""

from dataclasses import dataclass, fields

_SHARE = 10
_LEAST_STEP_MS = 1000


def _step_ms(timeout_ms: int) -> int:
    return min(timeout_ms, max(timeout_ms // _SHARE, _LEAST_STEP_MS))


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """Bounds of a partition's fold. A trajectory that reaches one is closed and labelled, never lost."""

    idle_timeout_ms: int = 600_000
    """A trajectory without an event for as long, as time counts, is closed."""
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

    @property
    def idle_step_ms(self) -> int:
        """The most that the gap before one record counts for the idle timeout."""
        return _step_ms(self.idle_timeout_ms)

    @property
    def grace_step_ms(self) -> int:
        """The most that the gap before one record counts for the grace of a hole."""
        return _step_ms(self.hole_grace_ms)

    def tick_times(self, log_ms: int, until_ms: int) -> list[int]:
        """When ``clock.ticked`` must stand in a log that is at ``log_ms`` and silent until ``until_ms``, so that
        everything open times out that has its time over by then; Unix milliseconds, ``until_ms`` the last.
        """
        times: list[int] = []
        for timeout, step in ((self.hole_grace_ms, self.grace_step_ms), (self.idle_timeout_ms, self.idle_step_ms)):
            at = times[-1] if times else log_ms
            times += range(at + step, min(until_ms, log_ms + timeout + step), step)
        return [*times, until_ms]

    def __post_init__(self) -> None:
        for setting in fields(self):
            if getattr(self, setting.name) < 1:
                raise ValueError(f"{setting.name} must be at least 1, not {getattr(self, setting.name)}")
        if self.max_remembered < self.remember:
            raise ValueError(f"max_remembered ({self.max_remembered}) must be at least remember ({self.remember})")
