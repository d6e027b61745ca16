"""One run: load, faults and watch in parallel; then a quiet phase and the verdict."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.streams.assembly.assembler import AssemblerConfig
from tests.chaos.audit import Audit
from tests.chaos.faults import broker_faults, worker_faults
from tests.chaos.inflict import Havoc
from tests.chaos.load import Sending, load
from tests.chaos.outcome import Outcome
from tests.chaos.plan import Plan
from tests.chaos.produce import Producers
from tests.chaos.rig import running_rig
from tests.chaos.verdict import judge
from tests.chaos.watch import Watch

_COMMIT_LIMIT_S = 180.0
_PROGRESS_S = 10.0


async def run_chaos(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Run in ``folder``; ``say`` prints progress. Raises if the run itself fails."""
    async with running_rig(plan, folder, say) as rig:
        producers = Producers(rig.bootstrap, plan.mix.producers)
        watch = Watch(rig.bootstrap, plan.partitions, producers)
        audit = Audit(rig.bootstrap, watch.begin) if plan.whole else None
        havoc = Havoc(rig, watch, say)
        background = [watch.run(), _progress(watch, audit, say), *([audit.run()] if audit else [])]
        tasks = [asyncio.create_task(each) for each in background]
        try:
            await watch.until_sampled()
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(producers.send(_enough(load(plan.seed, plan.mix), plan.events, havoc)))
                for faults in (worker_faults, broker_faults):
                    group.create_task(havoc.apply(faults(plan.seed, gap_s=plan.gap_s), enough=sending.done))
            say(f"{watch.now_s:6.1f} s  all {producers.acknowledged} events are in the log: waiting for the rest")
            await watch.until_committed(_COMMIT_LIMIT_S)
            if audit:
                await audit.until_decided(_COMMIT_LIMIT_S)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        havoc.record_recoveries()
        seconds = watch.now_s
        say(f"{seconds:6.1f} s  all committed: comparing with the batch")
        limits = AssemblerConfig(
            rig.bootstrap,
            idle_timeout_s=plan.idle_timeout_s,
            hole_grace_s=plan.hole_grace_s,
            max_event_bytes=plan.max_event_bytes,
        ).limits
        verdict = await judge(rig.bootstrap, plan.partitions, limits)
        exits = [end for slot in rig.slots for end in slot.exits]
        return Outcome(
            plan, havoc.done, watch.samples, exits, watch.regressions, verdict, audit, rig.markers_skipped, seconds
        )


def _enough(sendings: Iterator[Sending], events: int, havoc: Havoc) -> Iterator[Sending]:
    """At least ``events`` records, and more until every kind of fault was applied: faults need a running load."""
    for number, sending in enumerate(sendings):
        if number >= events and havoc.all_kinds_applied:
            return
        yield sending


async def _progress(watch: Watch, audit: Audit | None, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        if watch.samples:
            last = watch.samples[-1]
            folded = sum(last.folded.values())
            say(f"{watch.now_s:6.1f} s  {last.acknowledged} events sent, {folded} folded, lag {last.lag}")
        if audit and audit.entries:
            seen = audit.entries[-1].ledger
            waiting = ", ".join(f"{stage} {count}" for stage, count in seen.pending_by.items())
            wrong = f"; WRONG: {audit.wrong[0]}" if audit.wrong else ""
            say(f"          ledger: trained {seen.trained}, rejected {seen.rejected}, {waiting}{wrong}")
