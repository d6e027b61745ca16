"""A run as a folder: ``report.md``, ``report.json`` and ``timeline.png``."""

import json
import platform
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from headrace.deploy.kafka.jars import KAFKA_VERSION
from tests.chaos.outcome import Outcome
from tests.chaos.picture import draw
from tests.chaos.verdict import Comparison

_PACKAGES = ("aiokafka", "confluent-kafka", "faust-streaming", "headrace")


def write_report(outcome: Outcome, folder: Path) -> None:
    """Write the three files into ``folder``, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(as_dict(outcome), indent=1) + "\n")
    (folder / "report.md").write_text("\n".join(as_text(outcome)) + "\n")
    draw(outcome, folder / "timeline.png")


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Everything but the samples."""
    return {
        "command": outcome.plan.command,
        "plan": asdict(outcome.plan),
        "versions": versions(),
        "seconds": round(outcome.seconds, 1),
        "exact": outcome.is_good,
        "problems": outcome.problems,
        "events": outcome.verdict.events,
        "trajectories": asdict(outcome.verdict.trajectories),
        "dead_letters": asdict(outcome.verdict.dead_letters),
        "faults": [
            {name: value for name, value in asdict(each).items() if name != "before"} for each in outcome.faults
        ],
        "faults_by_kind": outcome.by_kind,
        "zombies": {"taken over": outcome.zombies, "refused": outcome.fenced},
        "markers_skipped_by_the_broker": outcome.markers_skipped,
        "ledgers": _ledgers(outcome),
        "worker_exits": [asdict(each) for each in outcome.exits],
    }


def as_text(outcome: Outcome) -> Iterator[str]:
    """The report as lines of Markdown."""
    plan, verdict = outcome.plan, outcome.verdict
    yield f"# {'Exact' if outcome.is_good else 'NOT EXACT'} under {len(outcome.faults)} faults (seed {plan.seed})"
    yield ""
    yield f"`{plan.command}`"
    yield ""
    yield (
        f"{verdict.events:,} records in `events` ({plan.partitions} partitions, {plan.workers} workers and one that "
        f"comes and goes, {'named' if plan.named else 'unnamed'}), {outcome.seconds:.0f} s. "
        + ", ".join(f"{name} {number}" for name, number in versions().items())
        + "."
    )
    yield ""
    yield "| | expected | found | lost | doubled | strange | other bytes | other order |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    yield _row("trajectories", verdict.trajectories)
    yield _row("dead letters", verdict.dead_letters)
    yield ""
    yield (
        f"Zombies: {outcome.zombies} times a frozen assembler woke after others had taken its partitions. "
        f"{outcome.fenced} times it had something to commit, was refused and logged that."
    )
    yield ""
    yield "| fault | times | seconds until all that stood in the log at its begin was committed: median | most |"
    yield "|---|--:|--:|--:|"
    for kind, seconds in sorted(_recoveries(outcome).items()):
        yield f"| {kind} | {outcome.by_kind[kind]} | {median(seconds):.1f} | {max(seconds):.1f} |"
    yield ""
    if ledgers := _ledgers(outcome):
        last = ledgers["last"]
        yield (
            f"The ledger was taken {ledgers['taken']} times while all this happened, and {ledgers['wrong']} times it "
            f"did not add up. At the end: {last['started']:,} started, {last['seen_without_start']:,} seen without a "
            f"start; {last['trained']:,} trained, {last['rejected']:,} rejected, {last['pending']:,} pending."
        )
        yield ""
    if outcome.markers_skipped:
        yield f"Transactions that the broker itself left without a marker as it came back: {outcome.markers_skipped}."
        yield ""
    yield f"Worker processes ended {len(outcome.exits)} times, and were started again each time they were wanted."
    yield ""
    yield "![faults, throughput and lag over time](timeline.png)"
    if outcome.problems:
        yield ""
        yield "## What is wrong"
        yield from (f"- {problem}" for problem in outcome.problems)


def _ledgers(outcome: Outcome) -> dict[str, Any]:
    """Number of ledgers, number that did not add up, and the last one."""
    if outcome.audit is None or not outcome.audit.entries:
        return {}
    entries = outcome.audit.entries
    wrong = sum(not entry.ledger.adds_up for entry in entries)
    return {"taken": len(entries), "wrong": wrong, "last": entries[-1].ledger.as_dict()}


def versions() -> dict[str, str]:
    """Versions of all components."""
    return {"kafka": KAFKA_VERSION, "python": platform.python_version()} | {name: version(name) for name in _PACKAGES}


def _recoveries(outcome: Outcome) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for each in outcome.faults:
        if each.recovered_s is not None:
            found[each.kind.value].append(each.recovered_s)
    return found


def _row(name: str, seen: Comparison) -> str:
    counts = (seen.expected, seen.found, seen.lost, seen.doubled, seen.strange, seen.changed, seen.out_of_order)
    return f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |"
