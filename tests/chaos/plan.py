"""What one run of the chaos test does: everything that its command decides."""

from dataclasses import dataclass

from tests.chaos.load import Mix


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. With the same plan the same events and the same faults come; the operating system decides the rest."""

    seed: int
    """Of events and faults."""
    events: int
    """Events in all, or more: they flow until every kind of fault has been."""
    per_s: float = 2000.0
    """Events a second, about."""
    workers: int = 3
    """Assembler processes; one more comes and goes."""
    partitions: int = 6
    """Of ``events`` and ``trajectories``."""
    gap_s: float = 2.5
    """Mean time between two faults."""
    idle_timeout_s: float = 12.0
    """A trajectory without an event for so long is closed."""
    hole_grace_s: float = 1.0
    """How long an ended trajectory waits for what is missing."""
    max_event_bytes: int = 64 * 1024
    """Largest event that the workers take; the load goes beyond it."""
    group_timeout_s: float = 15.0
    """A group that is not complete so long after its first reward is given up."""
    whole: bool = False
    """Not only the assembler: also score, group and a consumer of groups, under a ledger that is always taken."""

    def __post_init__(self) -> None:
        for name in ("events", "per_s", "gap_s", "idle_timeout_s", "hole_grace_s", "group_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.workers < 2 or self.partitions < self.workers:
            raise ValueError(f"{self.workers} workers on {self.partitions} partitions: a zombie needs two, with work")

    @property
    def named(self) -> bool:
        """Whether workers have names in the group (static membership): runs of odd seeds have."""
        return self.seed % 2 == 1

    @property
    def command(self) -> str:
        """What does the same again."""
        shown = (
            f"--seed {self.seed} --events {self.events} --rate {self.per_s:g} --workers {self.workers} "
            f"--partitions {self.partitions} --gap {self.gap_s:g}"
        )
        return f"python -m tests.chaos {shown}{' --whole' if self.whole else ''}"

    @property
    def mix(self) -> Mix:
        """The load."""
        return Mix(self.per_s, oversize_bytes=self.max_event_bytes + 1)
