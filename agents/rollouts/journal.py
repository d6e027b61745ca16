"""The journal of a sampler: which groups it began and which of their attempts ended, by the events in the log.

    trajectory.started {"group_id": "g7", "group_size": 8, "task": {…, "rollout":
        {"sampler": "s0", "number": 1000017, "epoch": 0, "member": 3, "level": 1, "curriculum": 1}}}
    trajectory.ended   {"status": "completed"}

A sampler that is started again reads it, so that no task is attempted in two groups of a run (one epoch), no finished
attempt is made again, half-done groups get the members that they lack, and half-done attempts continue or are replaced.
There is no file of its own: what is not in the log did not happen. The fold is pure; :func:`read_journal` reads.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import EndStatus, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import UnreadableRecord, decode_payload, envelope_of

log = logging.getLogger(__name__)

LABEL = "rollout"
"""Key of :class:`Place` in ``task`` of ``trajectory.started``."""

MAX_SIZE = 1_024
"""Largest group; grouping rejects members of larger ones, so no sampler made them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rollout's place among the rollouts of its run: the label ``rollout`` of its task."""

    sampler: str
    """Name of the sampler."""
    number: int
    """Number of the task in the task source, as in ``training(number)``."""
    epoch: int
    """How often the run had gone through its tasks when the group began."""
    member: int
    """Which attempt of its group it is, from 0; a replacement has the number of the attempt that it replaces."""
    level: int | None
    """Level of the task; ``None`` for the usual mixture."""
    curriculum: int | None = None
    """Level of the curriculum when the group began; ``None`` without one."""

    def of_member(self, member: int) -> "Place":
        """Return the place of another member of the group."""
        return replace(self, member=member)

    @property
    def label(self) -> dict[str, Any]:
        """The place as JSON."""
        return {
            "sampler": self.sampler,
            "number": self.number,
            "epoch": self.epoch,
            "member": self.member,
            "level": self.level,
            "curriculum": self.curriculum,
        }


def place_in(task: Mapping[str, Any]) -> Place | None:
    """Return the place in ``task`` of a start; ``None`` if there is none, or if no sampler wrote it."""
    match task.get(LABEL):
        case {
            "sampler": str(sampler),
            "number": int(number),
            "epoch": int(epoch),
            "member": int(member),
            "level": int() | None as level,
            "curriculum": int() | None as curriculum,
        } if all(map(_is_natural, (number, epoch, member, level, curriculum))):
            return Place(sampler, number, epoch, member, level, curriculum)
        case _:
            return None


def _is_natural(value: int | None) -> bool:
    return value is None or (type(value) is int and value >= 0)


@dataclass(slots=True)
class Recorded:
    """An attempt that began and did not end."""

    trajectory_id: str
    """Its trajectory."""
    place: Place
    """Its place."""
    started: TrajectoryStarted
    """Its start."""
    events: dict[int, Record] = field(default_factory=dict)
    """Its events by number, the start included."""

    @property
    def known(self) -> int:
        """One past the number of its last event."""
        return max(self.events, default=-1) + 1

    @property
    def is_whole(self) -> bool:
        """Whether no event is missing before its last."""
        return len(self.events) == self.known


@dataclass(slots=True)
class BegunGroup:
    """A group that a sampler began."""

    group_id: str
    """The group."""
    task_id: str
    """Its task."""
    size: int
    """Number of its members."""
    place: Place
    """Place of the first start that was read; its member number has no meaning here."""
    began_ms: int
    """Time of its earliest start, Unix milliseconds."""
    is_doubtful: bool = False
    """Whether its starts differ in more than the member: then nobody can tell what its members are."""
    ended: set[int] = field(default_factory=set)
    """Members that ended, and count."""
    running: dict[str, Recorded] = field(default_factory=dict)
    """Attempts that did not end, by trajectory."""

    @property
    def missing(self) -> list[int]:
        """Members that neither ended nor began, ascending."""
        begun = self.ended | {each.place.member for each in self.running.values()}
        return [member for member in range(self.size) if member not in begun]

    @property
    def is_finished(self) -> bool:
        """Whether all members ended."""
        return len(self.ended) >= self.size


class Journal:
    """Folds the events of a run, in the order of each trajectory. Repeated events change nothing."""

    def __init__(self, run: str, sampler: str) -> None:
        """``sampler``: the name whose groups are collected; task numbers are those of all samplers of the run."""
        self._run = run
        self._sampler = sampler
        self._attempts: dict[str, Recorded] = {}
        self.groups: dict[str, BegunGroup] = {}
        """Groups of this sampler with at least one start in the log."""
        self.attempted: set[tuple[int, int]] = set()
        """Epoch and number of every task that the run has attempted."""
        self._restarted: set[str] = set()
        """Attempts that ended as restarted: their members have not ended, and they have."""

    @property
    def level(self) -> int | None:
        """Level of the curriculum at this sampler's newest group, whatever was added to older ones since."""
        groups = self.groups.values()
        newest = max(groups, key=lambda each: (each.began_ms, each.place.epoch, each.place.number), default=None)
        return None if newest is None else newest.place.curriculum

    def wants(self, envelope: Envelope) -> bool:
        """Whether an event could change anything: most need not be decoded."""
        return envelope.type == TrajectoryStarted.TYPE or envelope.subject in self._attempts

    def add(self, envelope: Envelope, event: Record) -> None:
        """Fold an event."""
        name, number = envelope.subject or "", envelope.sequence or 0
        if isinstance(event, TrajectoryStarted):
            self._started(name, event, envelope.time_ms)
        attempt = self._attempts.get(name)
        if attempt is None:
            return
        attempt.events[number] = event
        if isinstance(event, TrajectoryEnded):
            self._ended(attempt, event.status)

    def _started(self, name: str, start: TrajectoryStarted, time_ms: int) -> None:
        place = place_in(start.task)
        if start.run != self._run or place is None or start.group_id is None:
            return
        self.attempted.add((place.epoch, place.number))
        size = start.group_size or 1
        if place.sampler != self._sampler or not place.member < size <= MAX_SIZE:
            return
        if name in self._attempts or name in self._restarted:
            return
        group = self.groups.get(start.group_id)
        if group is None:
            group = self.groups[start.group_id] = BegunGroup(start.group_id, start.task_id, size, place, time_ms)
        elif (start.task_id, size, place) != (group.task_id, group.size, group.place.of_member(place.member)):
            group.is_doubtful = True
        group.began_ms = min(group.began_ms, time_ms)  # partitions are read one after the other
        if place.member not in group.ended:
            attempt = self._attempts[name] = Recorded(name, place, start)
            group.running[name] = attempt

    def _ended(self, attempt: Recorded, status: EndStatus) -> None:
        group = self.groups[attempt.started.group_id or ""]
        group.running.pop(attempt.trajectory_id, None)
        del self._attempts[attempt.trajectory_id]
        if status is EndStatus.RESTARTED:
            self._restarted.add(attempt.trajectory_id)
        else:
            group.ended.add(attempt.place.member)


async def read_journal(bootstrap: str, run: str, sampler: str) -> Journal:
    """Read the topic ``events`` to its end. It takes as long as reading what retention keeps of it; only events of open
    attempts of this sampler are decoded, and held until their attempt ends."""
    began, events = time.monotonic(), 0
    journal = Journal(run, sampler)
    async for record in read_to_end(bootstrap, EVENTS):
        events += 1
        try:
            envelope = envelope_of(record.headers)
            if journal.wants(envelope):
                journal.add(envelope, decode_payload(envelope.type, record.value))
        except UnreadableRecord:  # the assembler makes a dead letter of it
            continue
    log.info(
        "sampler %s of run %s: %d groups of its own, %d attempted tasks in %d events, read in %.1f s",
        sampler, run, len(journal.groups), len(journal.attempted), events, time.monotonic() - began,
    )  # fmt: skip
    return journal
