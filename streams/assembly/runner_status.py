"""Where an assembler stands with one partition: numbers that are cheap to read, for metrics and for people."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.records.dead_letter import DeadLetterError


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """One partition of ``events``, as of now. Counts are since this process took the partition over."""

    partition: int
    """Partition."""
    position: int
    """Next offset to fold."""
    log_end: int | None
    """Offset after the log's last record, as of the last fetch; ``None`` where nothing was fetched yet."""
    log_ms: int
    """Log time, Unix milliseconds: the latest timestamp so far."""
    open_trajectories: int
    """Trajectories under way."""
    oldest_open_ms: int | None
    """Log time when the one that is open longest began, Unix milliseconds; ``None`` with none open."""
    held_events: int
    """Events of open trajectories."""
    held_bytes: int
    """Their memory."""
    remembered_bytes: int
    """Memory of what is known of closed trajectories."""
    duplicates: int
    """Events dropped because they had come before."""
    dead_letters: Mapping[DeadLetterError, int]
    """Records that could not be used, by what is wrong; ``late`` among them."""
    trajectories: int
    """Trajectories closed."""
    native_fallbacks: int
    """Those of them that Python wrote, because the extension module does not know an event type or a field."""
    commits: int
    """Transactions committed."""
    commits_failed: int
    """Transactions aborted."""
    last_commit_s: float
    """Seconds that the latest transaction took."""
    all_commits_s: float
    """Seconds of all transactions together."""

    @property
    def conflicts(self) -> int:
        """Events of another run under the id of a trajectory that was there."""
        return self.dead_letters.get(DeadLetterError.CONFLICT, 0)

    @property
    def late(self) -> int:
        """Events that came after their trajectory was closed."""
        return self.dead_letters.get(DeadLetterError.LATE, 0)
