"""Gathers groups from Kafka until a step has enough; members that are not admitted are rejected.

While a step trains, the next one's groups are prefetched, so that reading and decoding trajectories does not delay
training. Admission is decided when that step's batch is made, by the policy of that moment.

Decisions are committed (made durable, then published) before they take effect; a restarted trainer resumes from there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import TrainedGroup
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.rollouts import RolloutCounts
from headrace.trainer.admission.admission import (
    AdmissionRules,
    admit,
    age_when_rejected,
    place_of,
    places_to_read,
)
from headrace.trainer.admission.intake import Intake, TrainingRecord
from headrace.trainer.admission.pauses import NOTHING_PAUSED, Paused
from headrace.trainer.announcements.alerts import trainer_alert
from headrace.trainer.announcements.announcement import Announcement, announcement
from headrace.trainer.batches.advantages import members_std, reward_std
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.checkpoints.position import Position
from headrace.trainer.learning.rollouts import added
from headrace.trainer.progress.progress import Progress

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_MANY_REJECTIONS = 1000
"""Number of rejections that are committed before the groups are complete."""
_MOST_PREFETCHED = 10_000
"""Largest number of prefetched records of ``training``, including those of other runs and unreadable ones."""

CommitPosition = Callable[[Position], Awaitable[None]]
"""Makes a position durable, then publishes its announcements."""

PausedNow = Callable[[], Awaitable[Paused]]
"""Returns what is not admitted at the moment."""


async def never_paused() -> Paused:
    """The :data:`PausedNow` of a trainer that no alert pauses."""
    return NOTHING_PAUSED


@dataclass(slots=True)
class Gathered:
    """The groups of a step, and what was counted while they were gathered."""

    position: Position
    """The last committed position."""
    groups: list[AdmittedGroup] = field(default_factory=list)
    """Groups to train, in the log's order: by partition, then offset."""
    unpublished: list[Announcement] = field(default_factory=list)
    """Rejections, and alerts about unreadable records, that are not committed yet."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Partition of ``training`` → offset of the first record that has not been processed."""
    admitted_ages: list[int] = field(default_factory=list)
    """Age in versions of each trained member, when the batch was made."""
    rejected_ages: list[int] = field(default_factory=list)
    """Age in versions of each member that was rejected since the last step, at its rejection."""
    lost: int = 0
    """Records of ``training`` that were deleted before they were read, since the last step."""
    rollouts: RolloutCounts | None = None
    """Counts of all rollouts of the run, trained or not, reported by the groups read since the last step."""
    wait_s: float = 0.0
    """Seconds without records to read, while no step was training."""
    resolve_s: float = 0.0
    """Seconds spent reading and admitting trajectories, while no step was training."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Records of ``training`` with their trajectories, before admission."""

    arrivals: list[TrainingRecord]
    trajectories: Mapping[Place, Trajectory]
    wait_s: float
    """Seconds until they arrived."""
    resolve_s: float
    """Seconds spent reading their trajectories."""


class Gatherer:
    """Reads groups from the intake and admits them."""

    def __init__(
        self,
        intake: Intake,
        rules: AdmissionRules,
        commit: CommitPosition,
        progress: Progress,
        *,
        groups_per_step: int,
        paused_now: PausedNow = never_paused,
    ) -> None:
        """Reads from ``intake``, which has been started; passes every decision to ``commit``.

        ``paused_now`` is asked before groups are admitted. Groups that are pending already stay admitted.
        """
        self._intake = intake
        self._rules = rules
        self._commit_position = commit
        self._progress = progress
        self._groups_per_step = groups_per_step
        self._paused_now = paused_now
        self._paused: Paused = NOTHING_PAUSED
        self._prefetching: asyncio.Task[list[_Fetched]] | None = None
        self._left_over: list[_Fetched] = []
        """Prefetched for a step that needed fewer, because members of the previous one were pending again."""
        self._prefetch_ended = asyncio.Event()

    async def gather(self, position: Position, stop: asyncio.Event) -> Gathered | None:
        """Gather enough groups to train policy ``position.version`` on; returns ``None`` if ``stop`` is set first.

        Resumes from ``position``: its pending groups come first. The returned groups are committed.
        """
        version = position.version
        gathered = Gathered(position, offsets=dict(position.offsets), rejected_ages=list(position.rejected_ages))
        gathered.lost, gathered.rollouts = position.lost, position.rollouts
        if position.pending:
            await self._readmit(gathered)
        started = time.monotonic()
        self._paused = await self._paused_now()
        ahead = await self._prefetched()
        while ahead and len(gathered.groups) < self._groups_per_step:
            rest = self._admit(ahead.pop(0), gathered, version)
            ahead = [rest, *ahead] if rest.arrivals else ahead
        self._left_over = ahead
        gathered.resolve_s += time.monotonic() - started
        self._progress.gathered(len(gathered.groups))
        while (missing := self._groups_per_step - len(gathered.groups)) > 0:
            if stop.is_set():
                return None
            fetched = await self._fetch(missing, version)
            self._paused = await self._paused_now()
            gathered.wait_s += fetched.wait_s
            gathered.resolve_s += fetched.resolve_s
            self._admit(fetched, gathered, version)
            self._progress.gathered(len(gathered.groups))
            # A sampler may wait for the fate of its groups before it begins more, and the trainer waits for those.
            if gathered.unpublished and (not fetched.arrivals or len(gathered.unpublished) >= _MANY_REJECTIONS):
                await self._commit(gathered, attempts=0)
        # The batch's order must not depend on the order in which partitions were read.
        gathered.groups.sort(key=lambda group: place_of(group.reference))
        await self._commit(gathered, attempts=position.attempts + 1)
        return gathered

    async def _commit(self, gathered: Gathered, *, attempts: int) -> None:
        gathered.position = gathered.position.model_copy(
            update={
                "revision": gathered.position.revision + 1,
                "offsets": dict(gathered.offsets),
                "pending": [group.as_trained() for group in gathered.groups],
                "rejected_ages": list(gathered.rejected_ages),
                "lost": gathered.lost,
                "rollouts": gathered.rollouts,
                "attempts": attempts,
                "announcements": list(gathered.unpublished),
            }
        )
        await self._commit_position(gathered.position)
        gathered.unpublished.clear()

    def prefetch(self, version: int) -> None:
        """Start to prefetch the next step's groups while policy ``version`` is trained.

        The next :meth:`gather` uses the groups read by then, and raises the errors that occurred.
        """
        self._prefetch_ended.clear()
        self._prefetching = asyncio.create_task(self._prefetch(version))

    async def close(self) -> None:
        """Drop the prefetched groups: nothing of them was published, and a restarted trainer reads them again."""
        if self._prefetching is not None:
            self._prefetching.cancel()
            await asyncio.gather(self._prefetching, return_exceptions=True)

    async def _prefetch(self, version: int) -> list[_Fetched]:
        found: list[_Fetched] = []
        groups = sum(arrival.group is not None for fetched in self._left_over for arrival in fetched.arrivals)
        records = 0
        while groups < self._groups_per_step and records < _MOST_PREFETCHED and not self._prefetch_ended.is_set():
            fetched = await self._fetch(self._groups_per_step - groups, version)
            groups += sum(arrival.group is not None for arrival in fetched.arrivals)
            records += len(fetched.arrivals)
            found.append(fetched)
        return found

    async def _prefetched(self) -> list[_Fetched]:
        """Returns the prefetched records, and ends the prefetching."""
        held, self._left_over = self._left_over, []
        if self._prefetching is None:
            return held
        ahead, self._prefetching = self._prefetching, None
        self._prefetch_ended.set()
        return [*held, *await ahead]

    async def _fetch(self, at_most: int, version: int) -> _Fetched:
        """Read up to ``at_most`` available records, and their trajectories."""
        started = time.monotonic()
        arrivals = await self._intake.next_arrivals(at_most, timeout_s=_POLL_S)
        arrived = time.monotonic()
        groups = [arrival.group for arrival in arrivals if arrival.group is not None]
        places = {place for group in groups for place in places_to_read(group, self._rules, version)}
        trajectories = await self._intake.resolve(places)
        return _Fetched(arrivals, trajectories, arrived - started, time.monotonic() - arrived)

    def _admit(self, fetched: _Fetched, gathered: Gathered, version: int) -> _Fetched:
        """Admit records until there are enough groups; returns the remaining ones."""
        for number, arrival in enumerate(fetched.arrivals):
            if len(gathered.groups) == self._groups_per_step:
                return replace(fetched, arrivals=fetched.arrivals[number:])
            gathered.offsets[arrival.reference.partition] = arrival.reference.offset + 1
            if arrival.lost:
                gathered.lost += arrival.lost
                gathered.unpublished.append(self._lost(arrival, version))
            if arrival.problem is not None:
                where = f"training {arrival.reference.partition}:{arrival.reference.offset}"
                gathered.unpublished.append(
                    trainer_alert(
                        "unreadable_group",
                        f"{where} cannot be read: {arrival.problem}",
                        run=self._rules.run,
                        version=version,
                    )
                )
            if arrival.group is not None:
                gathered.rollouts = added(gathered.rollouts, arrival.rollouts)
                decided = admit(
                    arrival.group, arrival.reference, fetched.trajectories, self._rules, version, self._paused
                )
                self._add(gathered, *decided)
        return replace(fetched, arrivals=[])

    def _lost(self, arrival: TrainingRecord, version: int) -> Announcement:
        partition, last = place_of(arrival.reference)
        message = (
            f"training {partition}: the records from {last + 1 - arrival.lost} to {last}, up to {arrival.lost} groups, "
            "were deleted, by retention or manually, before this trainer read them. Their trajectories stay pending in "
            "the ledger and are never trained. Increase retention.ms of `training`, or do not stop a trainer for "
            "longer than that."
        )
        return trainer_alert(
            "groups_lost", message, run=self._rules.run, version=version, partition=partition, records=arrival.lost
        )

    async def _readmit(self, gathered: Gathered) -> None:
        """Admit the pending groups again, with the members admitted before; the others' rejections are published."""
        pending, version = gathered.position.pending, gathered.position.version
        found = await self._intake.reread([each.group for each in pending])
        narrowed = {
            place: group.model_copy(
                update={"members": [one for one in group.members if one.trajectory_id in each.trajectory_ids]}
            )
            for each in pending
            if (group := found.get(place := place_of(each.group))) is not None
        }
        trajectories = await self._intake.resolve(
            {place for group in narrowed.values() for place in places_to_read(group, self._rules, version)}
        )
        for each in pending:
            place = place_of(each.group)
            if place not in narrowed:
                self._add(gathered, None, _rejections_of_expired(each, self._rules.run))
                continue
            admitted, rejections = admit(narrowed[place], each.group, trajectories, self._rules, version)
            if admitted is not None:
                whole = found[place]
                admitted = replace(admitted, reward_std=reward_std(whole), members_std=members_std(whole))
            self._add(gathered, admitted, rejections)

    def _add(self, gathered: Gathered, admitted: AdmittedGroup | None, rejections: Sequence[Rejection]) -> None:
        version = gathered.position.version
        gathered.unpublished += [announcement(rejection, run=self._rules.run) for rejection in rejections]
        gathered.rejected_ages += [age_when_rejected(rejection, version) for rejection in rejections]
        lost = [rejection.trajectory_id for rejection in rejections if rejection.reason == Reason.UNRESOLVED]
        if lost:
            _log.warning("group %s: no usable record of %s", rejections[0].group_id, ", ".join(lost))
        if admitted is not None:
            gathered.groups.append(admitted)
            gathered.admitted_ages += [version - resolved.member.oldest_version for resolved in admitted.members]


def _rejections_of_expired(group: TrainedGroup, run: str) -> list[Rejection]:
    """Returns the rejections of the members of a group whose record has expired."""
    return [
        Rejection(
            trajectory_id=trajectory_id,
            trajectory=trajectory,
            stage=Stage.ADMISSION,
            reason=Reason.UNRESOLVED,
            run=run,
            group_id=group.group_id,
        )
        for trajectory_id, trajectory in zip(group.trajectory_ids, group.trajectories, strict=True)
    ]
