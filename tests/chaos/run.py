"""One run: load, faults and watch together; then quiet, and the verdict."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.assembler import AssemblerConfig
from tests.chaos.faults import faults
from tests.chaos.inflict import Havoc, Inflicted
from tests.chaos.load import Sending, load
from tests.chaos.plan import Plan
from tests.chaos.produce import Producers
from tests.chaos.rig import Exit, running_rig
from tests.chaos.verdict import Verdict, judge
from tests.chaos.watch import Sample, Watch

_SETTLES_S = 180.0
_PROGRESS_S = 10.0


@dataclass(slots=True)
class Outcome:
    """What a run was and showed."""

    plan: Plan
    faults: list[Inflicted]
    samples: list[Sample]
    exits: list[Exit]
    """Ends of worker processes."""
    setbacks: list[str]
    """Commits that went backwards."""
    verdict: Verdict
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
        found = [*self.verdict.differences, *self.setbacks]
        if not self.fenced:
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


async def run_chaos(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Break things in ``folder``; ``say`` is told what happens. Raises where the run itself could not go on."""
    async with running_rig(plan, folder, say) as rig:
        producers = Producers(rig.bootstrap, plan.mix.producers)
        watch = Watch(rig.bootstrap, plan.partitions, producers)
        havoc = Havoc(rig, watch, say)
        background = [asyncio.create_task(watch.run()), asyncio.create_task(_progress(watch, say))]
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(producers.send(_enough(load(plan.seed, plan.mix), plan.events, havoc)))
                group.create_task(havoc.go_on(faults(plan.seed, gap_s=plan.gap_s), enough=sending.done))
            say(
                f"{watch.now_s:6.1f} s  all {producers.acknowledged} events are in the log: waiting until all is folded"
            )
            await watch.until_settled(_SETTLES_S)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        havoc.note_recoveries()
        seconds = watch.now_s
        say(f"{seconds:6.1f} s  settled: comparing with the batch")
        limits = AssemblerConfig(
            rig.bootstrap,
            idle_timeout_s=plan.idle_timeout_s,
            hole_grace_s=plan.hole_grace_s,
            max_event_bytes=plan.max_event_bytes,
        ).limits
        verdict = await judge(rig.bootstrap, plan.partitions, limits)
        exits = [end for slot in rig.slots for end in slot.exits]
        return Outcome(plan, havoc.done, watch.samples, exits, watch.setbacks, verdict, seconds)


def _enough(sendings: Iterator[Sending], events: int, havoc: Havoc) -> Iterator[Sending]:
    """As many as are asked for, and on until every kind of fault has been: a fault must have something to break."""
    for number, sending in enumerate(sendings):
        if number >= events and havoc.was_everything:
            return
        yield sending


async def _progress(watch: Watch, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        if watch.samples:
            last = watch.samples[-1]
            folded = sum(last.folded.values())
            say(f"{watch.now_s:6.1f} s  {last.acknowledged} events sent, {folded} folded, lag {last.lag}")
