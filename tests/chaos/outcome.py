"""What a run was and showed."""

from collections import Counter
from dataclasses import dataclass

from tests.chaos.audit import Audit
from tests.chaos.inflict import Inflicted
from tests.chaos.plan import Plan
from tests.chaos.slot import Exit
from tests.chaos.verdict import Verdict
from tests.chaos.watch import Sample


@dataclass(slots=True)
class Outcome:
    """One run, over."""

    plan: Plan
    faults: list[Inflicted]
    samples: list[Sample]
    exits: list[Exit]
    """Ends of worker processes."""
    setbacks: list[str]
    """Commits that went backwards."""
    verdict: Verdict
    audit: Audit | None
    """The ledger over time, where there was more than the assembler."""
    markers_skipped: int
    """Transactions whose markers the broker itself left out somewhere: see :attr:`Rig.markers_skipped`."""
    seconds: float
    """From the first event until nothing was left to do."""

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind of fault → how often."""
        return dict(sorted(Counter(each.kind.value for each in self.faults).items()))

    @property
    def zombies(self) -> int:
        """Frozen workers whose partitions others had when they woke."""
        return sum(each.taken_over for each in self.faults)

    @property
    def fenced(self) -> int:
        """Those of them that were refused and said so."""
        return sum(each.taken_over and each.fenced for each in self.faults)

    @property
    def problems(self) -> list[str]:
        """What must not be, in words."""
        found = [*self.verdict.differences, *self.setbacks, *(self.audit.wrong if self.audit else ())]
        if self.markers_skipped and not self.verdict.is_exact:
            found.append(
                f"the broker left out markers of {self.markers_skipped} transactions: what differs may be its doing"
            )
        if not self.fenced and not self.plan.whole:  # of the whole, others are frozen too
            found.append("no frozen worker was refused when it woke: nothing is shown of zombies")
        found += [
            f"{each.kind.value} of {each.target} at {each.began_s:.0f} s was never overcome"
            for each in self.faults
            if each.recovered_s is None
        ]
        return found

    @property
    def is_good(self) -> bool:
        """Nothing is wrong."""
        return self.verdict.is_exact and not self.problems
