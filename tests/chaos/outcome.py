"""Plan and results of a run."""

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
    """A finished run."""

    plan: Plan
    faults: list[Inflicted]
    samples: list[Sample]
    exits: list[Exit]
    """Ends of worker processes."""
    regressions: list[str]
    """Commits that went backwards."""
    verdict: Verdict
    audit: Audit | None
    """The ledger over time, if more than the assembler ran."""
    markers_skipped: int
    """Transactions whose markers the broker omitted: see :attr:`Rig.markers_skipped`."""
    seconds: float
    """Seconds from the first event until all work was done."""

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind of fault → number of faults."""
        return dict(sorted(Counter(each.kind.value for each in self.faults).items()))

    @property
    def zombies(self) -> int:
        """Number of frozen workers whose partitions others owned when they resumed."""
        return sum(each.taken_over for each in self.faults)

    @property
    def fenced(self) -> int:
        """Number of zombies that were refused and logged that."""
        return sum(each.taken_over and each.fenced for each in self.faults)

    @property
    def problems(self) -> list[str]:
        """Descriptions of everything that must not happen."""
        found = [*self.verdict.differences, *self.regressions, *(self.audit.wrong if self.audit else ())]
        if self.markers_skipped and not self.verdict.is_exact:
            found.append(
                f"the broker omitted markers of {self.markers_skipped} transactions, which may explain the differences"
            )
        if not self.fenced and not self.plan.whole:  # a whole run freezes other workers too
            found.append("no frozen worker was refused when it resumed: the run shows nothing about zombies")
        found += [
            f"{each.kind.value} of {each.target} at {each.began_s:.0f} s: the system never recovered"
            for each in self.faults
            if each.recovered_s is None
        ]
        return found

    @property
    def is_good(self) -> bool:
        """Nothing is wrong."""
        return self.verdict.is_exact and not self.problems
