"""Limits of the fold of one ``events`` partition: time (stream time, not wall-clock time) and memory.

    stream time    0 s    20 s    40 s    ── Kafka is unavailable ──    700 s    720 s
    counted        0 s    20 s    40 s                                  100 s    120 s

The timeouts use counted time: the gap before a record counts for at most a tenth of the timeout (but up to a second
always counts in full). The records alone cannot distinguish an outage from idle agents. The assembler can, and writes
``clock.ticked`` into an idle partition with open trajectories more often than that. So idle time counts in full, and
the time of an outage is capped. All of it depends on the records alone.
"""

from dataclasses import dataclass, fields

_SHARE = 10
_LEAST_STEP_MS = 1000


def _step_ms(timeout_ms: int) -> int:
    return min(timeout_ms, max(timeout_ms // _SHARE, _LEAST_STEP_MS))


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """Limits of a partition's fold. A trajectory that reaches one is closed and labelled, never lost."""

    idle_timeout_ms: int = 600_000
    """Counted time without an event after which a trajectory is closed."""
    hole_grace_ms: int = 5_000
    """Counted time for which an ended trajectory waits for missing events."""
    max_event_bytes: int = (1024 + 16) * 1024
    """Largest event: key, payload and headers. The SDK sends payloads of up to 1 MiB."""
    max_trajectory_bytes: int = 16 * 1024 * 1024
    """Largest trajectory, in bytes of memory."""
    max_trajectory_events: int = 65_536
    """Exclusive upper bound of sequence numbers."""
    max_gaps: int = 256
    """Most gaps in a trajectory's sequence numbers."""
    max_open: int = 50_000
    """Most trajectories open at a time."""
    max_open_bytes: int = 256 * 1024 * 1024
    """Most memory of all open trajectories together; beyond it the largest are closed."""
    remember: int = 20_000
    """Number of recently closed trajectories whose ids are remembered, to detect duplicate events."""
    remember_bytes: int = 16 * 1024 * 1024
    """Most memory of the remembered trajectories; beyond it fewer are remembered."""
    max_remembered: int = 200_000
    """Most trajectories that a restart must read, all closed since the oldest open one began; at this number the oldest
    open one is closed."""

    @property
    def idle_step_ms(self) -> int:
        """The most that the gap before one record counts for the idle timeout."""
        return _step_ms(self.idle_timeout_ms)

    @property
    def grace_step_ms(self) -> int:
        """The most that the gap before one record counts for the grace period for missing events."""
        return _step_ms(self.hole_grace_ms)

    def tick_times(self, stream_ms: int, until_ms: int) -> list[int]:
        """Returns the times of the ``clock.ticked`` records that a partition needs if it is silent from ``stream_ms``
        to ``until_ms``, so that everything due by then times out; Unix milliseconds, ``until_ms`` last.
        """
        times: list[int] = []
        for timeout, step in ((self.hole_grace_ms, self.grace_step_ms), (self.idle_timeout_ms, self.idle_step_ms)):
            at = times[-1] if times else stream_ms
            times += range(at + step, min(until_ms, stream_ms + timeout + step), step)
        return [*times, until_ms]

    def __post_init__(self) -> None:
        for setting in fields(self):
            if getattr(self, setting.name) < 1:
                raise ValueError(f"{setting.name} must be at least 1, not {getattr(self, setting.name)}")
        if self.max_remembered < self.remember:
            raise ValueError(f"max_remembered ({self.max_remembered}) must be at least remember ({self.remember})")
