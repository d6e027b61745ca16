"""Status of an assembler's partition: numbers that are cheap to read, for metrics and status pages."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.records.dead_letter import DeadLetterError


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """Current status of one partition of ``events``. Counts start when this process acquires the partition."""

    partition: int
    """Partition."""
    position: int
    """Next offset to fold."""
    log_end: int | None
    """Log end offset as of the last fetch; ``None`` before the first fetch."""
    stream_ms: int
    """Stream time, Unix milliseconds: the latest timestamp so far."""
    open_trajectories: int
    """Open trajectories."""
    oldest_open_ms: int | None
    """Stream time at which the oldest open trajectory began, Unix milliseconds; ``None`` if none is open."""
    held_events: int
    """Events of open trajectories."""
    held_bytes: int
    """Memory of those events, in bytes."""
    remembered_bytes: int
    """Memory of the remembered closed trajectories, in bytes."""
    duplicates: int
    """Events dropped as duplicates."""
    dead_letters: Mapping[DeadLetterError, int]
    """Records that could not be used, by error, including ``late``."""
    trajectories: int
    """Trajectories closed."""
    native_fallbacks: int
    """Closed trajectories written by Python because the extension module does not know an event type or a field."""
    commits: int
    """Transactions committed."""
    commits_failed: int
    """Transactions aborted."""
    last_commit_s: float
    """Seconds that the latest transaction took."""
    all_commits_s: float
    """Total seconds of all transactions."""

    @property
    def conflicts(self) -> int:
        """Events of another run that used the id of an existing trajectory."""
        return self.dead_letters.get(DeadLetterError.CONFLICT, 0)

    @property
    def late(self) -> int:
        """Events that arrived after their trajectory was closed."""
        return self.dead_letters.get(DeadLetterError.LATE, 0)
