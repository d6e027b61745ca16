"""Settings of one run of the chaos test: everything that its command decides."""

from dataclasses import dataclass

from tests.chaos.load import Mix


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. The same plan gives the same events and faults; the rest depends on the operating system."""

    seed: int
    """Seed of events and faults."""
    events: int
    """Least number of events: they continue until every kind of fault was applied."""
    per_s: float = 2000.0
    """Events a second, about."""
    workers: int = 3
    """Assembler processes; one more joins and leaves."""
    partitions: int = 6
    """Of ``events`` and ``trajectories``."""
    gap_s: float = 2.5
    """Mean time between two faults."""
    idle_timeout_s: float = 12.0
    """A trajectory without an event for this time is closed."""
    hole_grace_s: float = 1.0
    """How long an ended trajectory waits for missing events."""
    max_event_bytes: int = 64 * 1024
    """Largest event that the workers accept; the load contains larger ones."""
    group_timeout_s: float = 15.0
    """A group that is incomplete this long after its first reward expires."""
    whole: bool = False
    """Also run score, group and a consumer of groups, and compute the ledger throughout."""

    def __post_init__(self) -> None:
        for name in ("events", "per_s", "gap_s", "idle_timeout_s", "hole_grace_s", "group_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.workers < 2 or self.partitions < self.workers:
            raise ValueError(f"{self.workers} workers on {self.partitions} partitions: a zombie needs two, with work")

    @property
    def named(self) -> bool:
        """Whether workers are static members of the consumer group, as in runs with odd seeds."""
        return self.seed % 2 == 1

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        shown = (
            f"--seed {self.seed} --events {self.events} --rate {self.per_s:g} --workers {self.workers} "
            f"--partitions {self.partitions} --gap {self.gap_s:g}"
        )
        return f"python -m tests.chaos {shown}{' --whole' if self.whole else ''}"

    @property
    def mix(self) -> Mix:
        """The load."""
        return Mix(self.per_s, oversize_bytes=self.max_event_bytes + 1)
