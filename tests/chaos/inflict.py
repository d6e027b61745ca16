"""Applies faults to the rig and records the results."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.faults import BROKER_KINDS, Fault, Kind
from tests.chaos.rig import TAKEN_OVER, Rig
from tests.chaos.slot import Role, Slot
from tests.chaos.watch import Sample, Watch

_TAKEOVER_S = 45.0
"""A frozen worker is resumed after this time even if no other worker acquired its partitions, as during an outage of
the broker.
"""
_WAKES_S = 15.0
"""A zombie with something to commit is refused within this time."""
_BROKER_RESTS_S = 30.0
"""After this time the broker gets its next fault even if the system has not recovered from its last one."""
_MOST_AT_A_TIME = 4
"""No fault begins while this many are unrecovered. A slow machine would otherwise never recover."""
_POLL_S = 0.2
_MOST_ZOMBIES = 6
"""A worker without anything to commit when it was frozen is not refused. After this many the run ends without proof."""


@dataclass(slots=True)
class Inflicted:
    """A fault that was applied."""

    kind: Kind
    """What."""
    target: str
    """Target: a worker or the broker."""
    before: Sample
    """Last sample before it began."""
    began_s: float
    """When, in seconds from the start of the run."""
    ended_s: float = 0.0
    """When it was over."""
    recovered_s: float | None = None
    """Seconds from its start until every record in the log at its start was folded."""
    taken_over: bool = False
    """Of a frozen worker: whether others had acquired its partitions before it resumed."""
    fenced: bool = False
    """Of a frozen worker: whether it was refused when it resumed, and logged that."""


class Havoc:
    """Applies faults, several at a time, to targets without a fault."""

    def __init__(self, rig: Rig, watch: Watch, say: Callable[[str], None]) -> None:
        self.done: list[Inflicted] = []
        """Applied faults in the order of their start."""
        self._rig = rig
        self._watch = watch
        self._say = say
        self._enough: Callable[[], bool] = lambda: False

    @property
    def all_kinds_applied(self) -> bool:
        """Whether each kind of fault was applied and ended, and a frozen assembler was refused when it resumed."""
        over = [each for each in self.done if each.ended_s]
        shown = any(each.fenced for each in over) or sum(each.taken_over for each in over) >= _MOST_ZOMBIES
        return {each.kind for each in over} == set(Kind) and (shown or self._rig.plan.whole)

    def record_recoveries(self) -> None:
        """Record for each fault whether the system recovered, as of the watch's last sample."""
        for noted in self.done:
            self._has_recovered(noted)

    async def apply(self, faults: Iterator[Fault], enough: Callable[[], bool]) -> None:
        """Apply ``faults``, one started after the other, until ``enough()``; waits for those in progress.

        Raises the exception of a fault, for example if the broker does not restart.
        """
        self._enough = enough
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(fault.after_s)
                await _until(lambda fault=fault: enough() or bool(self._targets(fault)))  # type: ignore[misc]
                if enough():
                    return
                target = self._choose(fault)
                name = target.name if target else "broker"
                noted = Inflicted(fault.kind, name, self._watch.samples[-1], self._watch.now_s)
                self.done.append(noted)
                self._say(f"{noted.began_s:6.1f} s  {fault.kind.value} of {noted.target}")
                group.create_task(self._inflict(fault, target, noted))

    def _targets(self, fault: Fault) -> list[Slot | None]:
        """Possible targets of the fault: workers or, as ``None``, the broker. A target has one fault at a time.

        There are no targets while many faults are unrecovered.
        """
        rig = self._rig
        if sum(not self._has_recovered(noted) for noted in self.done) >= _MOST_AT_A_TIME:
            return []
        if fault.kind in BROKER_KINDS:
            return [] if rig.broker_busy else [None]
        if fault.kind is Kind.REBALANCE:
            return [] if rig.spare.busy else [rig.spare]
        whole = [slot for slot in rig.regulars if slot.runs and not slot.busy]
        if fault.kind is not Kind.FREEZE:
            return [*whole]
        owners = set(rig.owners().values())
        return [slot for slot in whole if slot.role is Role.DECIDE or slot.name in owners]

    def _choose(self, fault: Fault) -> Slot | None:
        """Choose the fault's target, and mark it as busy."""
        whole = self._targets(fault)
        slot = whole[int(fault.choice * len(whole))]
        if slot is None:
            self._rig.broker_busy = True
        else:
            slot.busy = True
        return slot

    async def _inflict(self, fault: Fault, slot: Slot | None, noted: Inflicted) -> None:
        if slot is None:
            await self._rig.end_broker(at_once=fault.kind is Kind.BROKER_KILL)
            await asyncio.sleep(fault.hold_s)
            await self._rig.start_broker()
            noted.ended_s = self._watch.now_s
            # Another fault before everything is folded would only keep the system from working.
            await _until(lambda: self._enough() or self._has_recovered(noted), _BROKER_RESTS_S)
            self._rig.broker_busy = False
        else:
            await self._inflict_on(slot, fault, noted)
            noted.ended_s = self._watch.now_s
            slot.busy = False

    async def _inflict_on(self, slot: Slot, fault: Fault, noted: Inflicted) -> None:
        match fault.kind:
            case Kind.KILL:
                slot.leave()
                slot.kill()
                await asyncio.sleep(fault.hold_s)
                slot.want()
            case Kind.TERM:
                slot.leave()
                await slot.terminate()
                await asyncio.sleep(fault.hold_s)
                slot.want()
            case Kind.FREEZE:
                await self._freeze(slot, fault.hold_s, noted)
            case Kind.CUT:
                slot.proxy.cut()
            case Kind.STALL:
                slot.proxy.stall()
                await asyncio.sleep(fault.hold_s)
                slot.proxy.flow()
            case Kind.REFUSE:
                slot.proxy.refuse()
                slot.proxy.cut()
                await asyncio.sleep(fault.hold_s)
                await slot.proxy.listen()
            case Kind.REBALANCE:
                slot.want()
                await asyncio.sleep(fault.hold_s)
                slot.leave()
                await slot.terminate()
            case _:
                raise ValueError(f"{fault.kind} is not a worker's")

    async def _freeze(self, slot: Slot, hold_s: float, noted: Inflicted) -> None:
        """Stop the worker until others own its partitions, resume it, and check its log."""
        held = {partition for partition, name in self._rig.owners().items() if name == slot.name}
        log_start = slot.log_size
        if not slot.freeze():
            return
        await asyncio.sleep(hold_s)
        if slot.role is not Role.ASSEMBLE:
            slot.thaw()
            return
        await _until(lambda: self._enough() or self._has_none_of(slot, held), _TAKEOVER_S)
        noted.taken_over = self._has_none_of(slot, held)
        if slot.thaw() and noted.taken_over:
            noted.fenced = await _until(lambda: TAKEN_OVER in slot.log_since(log_start), _WAKES_S)

    def _has_none_of(self, slot: Slot, partitions: set[int]) -> bool:
        owners = self._rig.owners()
        return bool(partitions) and all(owners[partition] != slot.name for partition in partitions)

    def _has_recovered(self, noted: Inflicted) -> bool:
        """Whether every record in the log at the fault's start is folded; records when that was seen."""
        if noted.recovered_s is None:
            later = (sample for sample in self._watch.samples if sample.at_s > noted.began_s)
            first = next((sample for sample in later if sample.is_past(noted.before)), None)
            noted.recovered_s = None if first is None else first.at_s - noted.began_s
        return noted.recovered_s is not None


async def _until(holds: Callable[[], bool], seconds: float | None = None) -> bool:
    """Whether ``holds()`` became true within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - a log file has no event to wait for
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
