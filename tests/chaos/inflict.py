"""Do what a fault says to the rig, and note what came of it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.faults import BROKER_KINDS, Fault, Kind
from tests.chaos.rig import TAKEN_OVER, Rig
from tests.chaos.slot import Role, Slot
from tests.chaos.watch import Sample, Watch

_TAKEOVER_S = 45.0
"""A frozen worker is woken after so long even where nobody took its partitions, as the broker was away too."""
_WAKES_S = 15.0
"""A zombie with something to commit notices within this time."""
_BROKER_RESTS_S = 30.0
"""After so long a broker is broken again even where its last end was not overcome yet."""
_MOST_AT_A_TIME = 4
"""No fault begins while so many are not overcome. On a slow machine nothing would ever be, otherwise."""
_LOOK_S = 0.2
_MOST_ZOMBIES = 6
"""Whoever had nothing to commit when it was frozen is not refused. After so many the run ends, and shows nothing."""


@dataclass(slots=True)
class Inflicted:
    """A fault that was done."""

    kind: Kind
    """What."""
    target: str
    """Whom: a worker or the broker."""
    before: Sample
    """What was seen last before it began."""
    began_s: float
    """When, in seconds from the start of the run."""
    ended_s: float = 0.0
    """When it was over."""
    recovered_s: float | None = None
    """Seconds from its begin until everything was folded that stood in the log at its begin."""
    taken_over: bool = False
    """Of a frozen worker: whether others had taken its partitions before it woke."""
    fenced: bool = False
    """Of a frozen worker: whether it was refused when it woke, and said so."""


class Havoc:
    """Inflicts faults, several at a time, on those that are whole."""

    def __init__(self, rig: Rig, watch: Watch, say: Callable[[str], None]) -> None:
        self.done: list[Inflicted] = []
        """In the order in which they began."""
        self._rig = rig
        self._watch = watch
        self._say = say
        self._enough: Callable[[], bool] = lambda: False

    @property
    def was_everything(self) -> bool:
        """Whether each kind of fault has been, and is over, and a frozen assembler was refused when it woke."""
        over = [each for each in self.done if each.ended_s]
        shown = any(each.fenced for each in over) or sum(each.taken_over for each in over) >= _MOST_ZOMBIES
        return {each.kind for each in over} == set(Kind) and (shown or self._rig.plan.whole)

    def note_recoveries(self) -> None:
        """Note of each fault whether it was overcome, as of the watch's last look."""
        for noted in self.done:
            self._is_overcome(noted)

    async def go_on(self, faults: Iterator[Fault], enough: Callable[[], bool]) -> None:
        """Inflict ``faults``, one begun after the other, until it is ``enough``; waits for those under way.

        Raises what a fault raised, such as a broker that does not come back.
        """
        self._enough = enough
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(fault.after_s)
                await _until(lambda fault=fault: enough() or bool(self._whole(fault)))  # type: ignore[misc]
                if enough():
                    return
                target = self._take(fault)
                name = target.name if target else "broker"
                noted = Inflicted(fault.kind, name, self._watch.samples[-1], self._watch.now_s)
                self.done.append(noted)
                self._say(f"{noted.began_s:6.1f} s  {fault.kind.value} of {noted.target}")
                group.create_task(self._inflict(fault, target, noted))

    def _whole(self, fault: Fault) -> list[Slot | None]:
        """Those that the fault can be for: workers or, as ``None``, the broker. None twice at a time, and nobody while
        many faults are not overcome."""
        rig = self._rig
        if sum(not self._is_overcome(noted) for noted in self.done) >= _MOST_AT_A_TIME:
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

    def _take(self, fault: Fault) -> Slot | None:
        """The one that the fault is for, marked as busy."""
        whole = self._whole(fault)
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
            # Broken again before all is folded, it would show nothing but that nothing works.
            await _until(lambda: self._enough() or self._is_overcome(noted), _BROKER_RESTS_S)
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
        """Stop the worker until others have its partitions, wake it, and see what it says."""
        held = {partition for partition, name in self._rig.owners().items() if name == slot.name}
        said = slot.log_size
        if not slot.freeze():
            return
        await asyncio.sleep(hold_s)
        if slot.role is not Role.ASSEMBLE:
            slot.thaw()
            return
        await _until(lambda: self._enough() or self._has_none_of(slot, held), _TAKEOVER_S)
        noted.taken_over = self._has_none_of(slot, held)
        if slot.thaw() and noted.taken_over:
            noted.fenced = await _until(lambda: TAKEN_OVER in slot.log_since(said), _WAKES_S)

    def _has_none_of(self, slot: Slot, partitions: set[int]) -> bool:
        owners = self._rig.owners()
        return bool(partitions) and all(owners[partition] != slot.name for partition in partitions)

    def _is_overcome(self, noted: Inflicted) -> bool:
        """Whether everything is folded that stood in the log when the fault began; notes when that was seen."""
        if noted.recovered_s is None:
            later = (sample for sample in self._watch.samples if sample.at_s > noted.began_s)
            first = next((sample for sample in later if sample.is_past(noted.before)), None)
            noted.recovered_s = None if first is None else first.at_s - noted.began_s
        return noted.recovered_s is not None


async def _until(holds: Callable[[], bool], seconds: float | None = None) -> bool:
    """Whether it came to hold within ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - a log file has no event to wait for
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return False
    return True
