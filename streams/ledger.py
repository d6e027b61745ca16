"""The ledger: every trajectory that was started, and what became of it. It adds up, or says that it does not.

    started ──▶ open ──▶ unscored ──▶ ungrouped ──▶ untrained ──▶ trained at step n
                              (pending)   └──▶ rejected ◀──┘      or rejected by stage and reason

Each fate is counted from the topic that tells it and by trajectory id, so what was written twice counts once; no count
is the difference of others. The sum must be the number of trajectories that ``events`` know, and nothing may have two
fates.

The topics are read against the stream, ``steps`` first and ``events`` last, each to its end as of the moment when its
reading begins. What is seen in a topic was made of records that were in the topics before it by then, so a ledger
taken while everything runs never holds an effect without its cause.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.schemas.envelope import SUBJECT, TYPE
from headrace.schemas.events import ClockTicked, TrajectoryStarted
from headrace.schemas.log import open_consumer, partitions_of, read_to_end
from headrace.schemas.records import Rejection, Step, TrainingGroup
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import UnreadableRecord, decode_payload

MAX_NAMED = 100
"""Ids named in a ledger, of each kind of trouble; the rest is counted."""

TOPICS_AGAINST_THE_STREAM: tuple[Topic, ...] = (STEPS, REJECTED, TRAINING, REWARDS, TRAJECTORIES, EVENTS)
"""The order of reading. ``steps`` comes before ``rejected`` as the trainer writes both, for different trajectories."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts of distinct trajectories."""

    started: int
    """Whose ``trajectory.started`` is in ``events``."""
    seen_without_start: int
    """Known to ``events`` by other facts only."""
    expired: int
    """Known to later topics only, because ``events`` has been cut by its retention."""
    trained: int
    """In a step."""
    trained_by_step: dict[str, int]
    """``run/step`` → trajectories."""
    rejected: int
    """Turned away."""
    rejected_by: dict[str, dict[str, int]]
    """Stage → reason → trajectories."""
    pending: int
    """Neither yet."""
    pending_by: dict[str, int]
    """``open`` (not assembled), ``unscored``, ``ungrouped``, ``untrained`` → trajectories."""
    conflicts: list[str]
    """What contradicts itself, in words, at most ``MAX_NAMED``."""
    conflicting: int
    """How many contradictions there are."""
    unreadable: int
    """Records of later topics that could not be decoded."""
    adds_up: bool
    """Every trajectory has exactly one fate, and the fates sum up to the trajectories."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(slots=True)
class Tally:
    """The fold's state: sets of trajectory ids, so that order and repetition do not matter."""

    started: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    assembled: set[str] = field(default_factory=set)
    scored: set[str] = field(default_factory=set)
    grouped: set[str] = field(default_factory=set)
    trained: dict[str, set[str]] = field(default_factory=dict)
    """Trajectory id → ``run/step``."""
    rejected: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Trajectory id → (stage, reason)."""
    unreadable: int = 0

    def add(self, topic: str, headers: Mapping[str, bytes | None], value: bytes | None) -> None:
        """Fold one record in. Values are decoded only where ids stand in them; bad headers are not ours to report."""
        kind, subject = _text(headers.get(TYPE)), _text(headers.get(SUBJECT))
        if kind is None or subject is None:
            return
        if topic == EVENTS.name:
            if kind != ClockTicked.TYPE:
                self.seen.add(subject)
            if kind == TrajectoryStarted.TYPE:
                self.started.add(subject)
        elif topic == TRAJECTORIES.name:
            self.assembled.add(subject)
        elif topic == REWARDS.name:
            self.scored.add(subject)
        else:
            try:
                self._add_decoded(decode_payload(kind, value))
            except UnreadableRecord:
                self.unreadable += 1

    def _add_decoded(self, payload: object) -> None:
        if isinstance(payload, TrainingGroup):
            self.grouped.update(member.trajectory_id for member in payload.members)
        elif isinstance(payload, Rejection):
            self.rejected.setdefault(payload.trajectory_id, set()).add((payload.stage.value, payload.reason.value))
        elif isinstance(payload, Step):
            for group in payload.groups:
                for trajectory_id in group.trajectory_ids:
                    self.trained.setdefault(trajectory_id, set()).add(f"{payload.run}/{payload.step}")

    def ledger(self, *, cut: frozenset[str] = frozenset()) -> Ledger:
        """The counts. ``cut`` names the topics whose oldest records are gone: what they do not know may be expired."""
        trained, rejected = set(self.trained), set(self.rejected)
        later = self.scored | self.grouped | trained | rejected
        assembled = self.assembled | later if TRAJECTORIES.name in cut else self.assembled
        strangers = (assembled | later) - self.seen
        pending = {
            "open": self.seen - assembled,
            "unscored": assembled - self.scored,
            "ungrouped": self.scored - self.grouped - rejected,
            "untrained": self.grouped - trained - rejected,
        }
        expired = len(strangers) if EVENTS.name in cut else 0
        conflicts = sorted(self._conflicts(set() if expired else strangers))
        fates = len(trained) + len(rejected) + sum(map(len, pending.values()))
        return Ledger(
            started=len(self.started),
            seen_without_start=len(self.seen - self.started),
            expired=expired,
            trained=len(trained),
            trained_by_step=_in_step_order(Counter(step for steps in self.trained.values() for step in steps)),
            rejected=len(rejected),
            rejected_by=self._rejected_by(),
            pending=sum(map(len, pending.values())),
            pending_by={stage: len(ids) for stage, ids in pending.items()},
            conflicts=conflicts[:MAX_NAMED],
            conflicting=len(conflicts),
            unreadable=self.unreadable,
            adds_up=not conflicts and not self.unreadable and fates == len(self.seen) + expired,
        )

    def _rejected_by(self) -> dict[str, dict[str, int]]:
        counts = Counter(fate for fates in self.rejected.values() for fate in fates)
        by: dict[str, dict[str, int]] = {}
        for (stage, reason), count in sorted(counts.items()):
            by.setdefault(stage, {})[reason] = count
        return by

    def _conflicts(self, strangers: set[str]) -> Iterator[str]:
        for trajectory_id in self.trained.keys() & self.rejected.keys():
            yield f"{trajectory_id} is both trained and rejected"
        for trajectory_id, steps in self.trained.items():
            if len(steps) > 1:
                yield f"{trajectory_id} is trained in {len(steps)} steps: {', '.join(sorted(steps))}"
        for trajectory_id, fates in self.rejected.items():
            if len(fates) > 1:
                yield f"{trajectory_id} is rejected {len(fates)} times: {', '.join(sorted(map('/'.join, fates)))}"
        for trajectory_id in strangers:
            yield f"{trajectory_id} has records and no event"


async def read_ledger(bootstrap: str) -> Ledger:
    """The ledger of everything in the Kafka at ``bootstrap`` as of now, also while everything runs."""
    tally = Tally()
    for topic in TOPICS_AGAINST_THE_STREAM:
        async for record in read_to_end(bootstrap, topic):
            tally.add(topic.name, dict(record.headers), record.value)
    return tally.ledger(cut=await _cut_topics(bootstrap))


async def _cut_topics(bootstrap: str) -> frozenset[str]:
    """Which of the topics with a retention have lost their oldest records."""
    found = set()
    async with open_consumer(bootstrap) as consumer:
        for topic in (EVENTS, TRAJECTORIES):
            begins = await consumer.beginning_offsets(await partitions_of(consumer, topic))
            if any(begins.values()):
                found.add(topic.name)
    return frozenset(found)


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode(errors="replace")


def _in_step_order(counts: Mapping[str, int]) -> dict[str, int]:
    def place(item: tuple[str, int]) -> tuple[str, int]:
        run, _, step = item[0].rpartition("/")
        return run, int(step)

    return dict(sorted(counts.items(), key=place))
