"""A run of the fuzz test: cases until a number of records was sent, each within its budget of processor time.

The work of a case is its bytes, those of the trajectories it closes and of the records that follow, and a constant per
record. Plain cases, measured first in the same run, give the processor time per unit of work; a case may be ``SLOWEST``
times as slow. A case that looks slow is repeated by itself three times, because the machine's speed varies.
"""

import asyncio
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz.generate import Case, cases, plain
from tests.fuzz.pipeline import Broken, Pipeline, clock

SLOWEST = 60.0
"""Times as long as the median plain case, for the same work."""
SUSPECT = 15.0
"""Times from which a case is repeated by itself three times; the fastest counts."""
RESTART_EVERY = 500
"""Cases after which score and group restart from their state."""
_PLAIN_CASES = 300


@dataclass
class Report:
    """Result of a run."""

    records: int = 0
    cases: int = 0
    seconds: float = 0.0
    """Processor time of the pipeline."""
    slowest: list[tuple[float, str]] = field(default_factory=list)
    """Multiple of the plain cost, and the case's description; the slowest first."""
    counts: Counter[str] = field(default_factory=Counter)
    """As :attr:`Pipeline.counts`."""

    def lines(self) -> list[str]:
        """The report as text."""
        worst = "; ".join(f"{times:.1f} × ({kind})" for times, kind in self.slowest[:5])
        rate = self.records / self.seconds if self.seconds else 0.0
        return [
            f"{self.records:,} records in {self.cases:,} cases, {self.seconds:.0f} s of processor time "
            f"({rate:,.0f} records/s); slowest for their work: {worst}",
            *(f"  {name}: {count:,}" for name, count in sorted(self.counts.items())),
        ]


def fuzz(seed: int, records: int, *, progress_every: int = 0) -> Report:
    """Send ``records`` records of the cases of ``seed``. Raises :class:`Broken`, or the pipeline's exception, with a
    note that names the case.
    """
    return asyncio.run(_fuzz(seed, records, progress_every))


async def _fuzz(seed: int, records: int, progress_every: int) -> Report:
    report, pipeline, unit = Report(), Pipeline(), await _plain_cost(seed)
    for case in cases(seed):
        try:
            before = clock()
            work = await pipeline.send(case.records)
            took = clock() - before
        except BaseException as error:
            error.add_note(f"seed {seed}, case {report.cases}: {case.kind}")
            raise
        report.seconds += took
        times = took / (work * unit)
        if times > SUSPECT:
            times = min([times, *[await _alone(case, unit) for _ in range(3)]])
            if times > SLOWEST:
                raise Broken(f"seed {seed}, case {report.cases} ({case.kind}): {times:.0f} times the plain cost")
        report.slowest = sorted([*report.slowest, (times, case.kind)], reverse=True)[:20]
        report.cases += 1
        report.records += len(case.records)
        if report.cases % RESTART_EVERY == 0:
            pipeline.restart()
        if progress_every and report.cases % progress_every == 0:
            print(report.lines()[0], file=sys.stderr, flush=True)
        if report.records >= records:
            break
    await pipeline.finish()
    report.counts = pipeline.counts
    return report


async def _plain_cost(seed: int) -> float:
    """Median seconds of processor time per byte of work over plain cases."""
    pipeline, costs = Pipeline(), []
    for case in plain(seed, _PLAIN_CASES):
        before = clock()
        work = await pipeline.send(case.records)
        costs.append((clock() - before) / work)
    return statistics.median(costs[_PLAIN_CASES // 10 :])


async def _alone(case: Case, unit: float) -> float:
    pipeline = Pipeline()
    before = clock()
    work = await pipeline.send(case.records)
    return (clock() - before) / (work * unit)
