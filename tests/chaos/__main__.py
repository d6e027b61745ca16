"""``python -m tests.chaos --seed 3 --events 200000``: inject faults into processes on a real Kafka and compare the
output with a batch.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from tests.chaos.plan import Plan
from tests.chaos.report import write_report
from tests.chaos.run import run_chaos


def main() -> int:
    """Run once; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of events and faults; odd: workers are static members")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--gap", type=float, default=2.5, help="mean seconds between two faults")
    parser.add_argument("--report", type=Path, metavar="DIR", help="folder for report.md, report.json, timeline.png")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for the broker's data and all logs")
    parser.add_argument("--whole", action="store_true", help="also score, group and a trainer, under the ledger")
    given = parser.parse_args()
    plan = Plan(given.seed, given.events, given.rate, given.workers, given.partitions, given.gap, whole=given.whole)

    # Clients log a line for every attempt to reach an unavailable broker.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as scratch:
        outcome = asyncio.run(run_chaos(plan, given.keep or Path(scratch), say))
    if given.report:
        write_report(outcome, given.report)
    for problem in outcome.problems:
        say(f"WRONG  {problem}")
    say("exact" if outcome.is_good else "NOT EXACT")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
