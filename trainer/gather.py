"""Gathering: groups from the log, until a step has as many as it needs, and what became of the others.

While a step trains, the next one's groups are read: reading and decoding trajectories takes no time from training. What
is admitted of them is decided when that step's batch is made, by the policy of then.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.read_back import Place
from headrace.schemas.records import Reason, Reference, TrainingGroup, Trajectory
from headrace.trainer.admission.admission import AdmissionRules, admit, places_to_read
from headrace.trainer.admission.intake import Arrival, Intake
from headrace.trainer.alerts import trainer_alert
from headrace.trainer.announce import Announcement, Announcer, announcement
from headrace.trainer.batches.batch import AdmittedGroup
from headrace.trainer.progress.progress import Progress

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_MANY_REJECTIONS = 1000
"""Rejections held for the next step's transaction. They may be said earlier: the same version and group give the same
rejection, under the same id, however often a restart says it."""
_MOST_AHEAD = 10_000
"""Records of ``training`` looked at ahead of their step, those of other runs and the unreadable ones included."""


@dataclass(slots=True)
class Gathered:
    """What a step waits for."""

    groups: list[AdmittedGroup] = field(default_factory=list)
    """Those to train."""
    said: list[Announcement] = field(default_factory=list)
    """Rejections, and alerts of records that could not be read."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Partition of ``training`` → offset of the first record that was not looked at."""
    admitted_ages: list[int] = field(default_factory=list)
    """Versions of each member that is trained, when the batch was made."""
    rejected_ages: list[int] = field(default_factory=list)
    """Versions of each member that was turned away, when it was."""
    wait_s: float = 0.0
    """Seconds in which nothing was there to be read, while no step was training."""
    resolve_s: float = 0.0
    """Seconds of reading trajectories and admitting them, while no step was training."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """Records of ``training`` with what they point at, not decided on."""

    arrivals: list[Arrival]
    trajectories: Mapping[Place, Trajectory]


class Gatherer:
    """Takes groups from the intake and admits them."""

    def __init__(
        self, intake: Intake, announcer: Announcer, rules: AdmissionRules, progress: Progress, *, groups_per_step: int
    ) -> None:
        """Reads from ``intake``, which has taken up position; rejections that cannot wait go to ``announcer``."""
        self._intake = intake
        self._announcer = announcer
        self._rules = rules
        self._progress = progress
        self._groups_per_step = groups_per_step
        self._ahead: asyncio.Task[list[_Looked]] | None = None
        self._taken_over = asyncio.Event()

    async def gather(self, offsets: dict[int, int], version: int, stop: asyncio.Event) -> Gathered | None:
        """Enough groups that policy ``version`` may be trained on; ``None`` where ``stop`` comes first.

        ``offsets`` is where the step before left off. Groups are in the log's order: by partition, then offset.
        """
        gathered = Gathered(offsets=dict(offsets))
        for looked in await self._take_over(gathered):
            self._admit(looked, gathered, version)
        self._progress.gathered(len(gathered.groups))
        while (missing := self._groups_per_step - len(gathered.groups)) > 0:
            if stop.is_set():
                return None
            looked = await self._look(missing, version, gathered)
            self._admit(looked, gathered, version)
            self._progress.gathered(len(gathered.groups))
            # A sampler may be waiting to hear what became of its work before it begins more, and we for that.
            if gathered.said and (not looked.arrivals or len(gathered.said) >= _MANY_REJECTIONS):
                await self._announcer.announce(gathered.said)
                gathered.said.clear()
        # The batch's order must not depend on which partition answered first.
        gathered.groups.sort(key=lambda group: (group.reference.partition, group.reference.offset))
        return gathered

    def look_ahead(self, version: int) -> None:
        """Begin to read the next step's groups while policy ``version`` is trained.

        The next :meth:`gather` takes over what has come by then; what goes wrong until then is raised there.
        """
        self._taken_over.clear()
        self._ahead = asyncio.create_task(self._look_ahead(version))

    async def close(self) -> None:
        """Give up what was looked at ahead: nothing of it was told, and a restart reads it again."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    async def _look_ahead(self, version: int) -> list[_Looked]:
        found: list[_Looked] = []
        groups = records = 0
        while groups < self._groups_per_step and records < _MOST_AHEAD and not self._taken_over.is_set():
            looked = await self._look(self._groups_per_step - groups, version)
            groups += sum(arrival.group is not None for arrival in looked.arrivals)
            records += len(looked.arrivals)
            found.append(looked)
        return found

    async def _take_over(self, gathered: Gathered) -> list[_Looked]:
        """What was looked at ahead; nothing where nobody looked."""
        if self._ahead is None:
            return []
        ahead, self._ahead = self._ahead, None
        self._taken_over.set()
        started = time.monotonic()
        found = await ahead
        gathered.resolve_s += time.monotonic() - started
        return found

    async def _look(self, at_most: int, version: int, gathered: Gathered | None = None) -> _Looked:
        """Records that are there or come within a moment, and what they point at; ``gathered`` is told the seconds."""
        started = time.monotonic()
        arrivals = await self._intake.next_arrivals(at_most, timeout_s=_POLL_S)
        arrived = time.monotonic()
        groups = [arrival.group for arrival in arrivals if arrival.group is not None]
        places = {place for group in groups for place in places_to_read(group, self._rules, version)}
        trajectories = await self._intake.resolve(places)
        if gathered is not None:
            gathered.wait_s += arrived - started
            gathered.resolve_s += time.monotonic() - arrived
        return _Looked(arrivals, trajectories)

    def _admit(self, looked: _Looked, gathered: Gathered, version: int) -> None:
        for arrival in looked.arrivals:
            gathered.offsets[arrival.reference.partition] = arrival.reference.offset + 1
            if arrival.problem is not None:
                where = f"training {arrival.reference.partition}:{arrival.reference.offset}"
                gathered.said.append(
                    trainer_alert(
                        "unreadable_group",
                        f"{where} cannot be read: {arrival.problem}",
                        run=self._rules.run,
                        version=version,
                    )
                )
            if arrival.group is not None:
                self._admit_group(arrival.group, arrival.reference, looked.trajectories, gathered, version)

    def _admit_group(
        self,
        group: TrainingGroup,
        reference: Reference,
        trajectories: Mapping[Place, Trajectory],
        gathered: Gathered,
        version: int,
    ) -> None:
        admitted, rejections = admit(group, reference, trajectories, self._rules, version)
        gathered.said += [announcement(rejection, run=self._rules.run) for rejection in rejections]
        gathered.rejected_ages += [version - (rejection.policy_version or 0) for rejection in rejections]
        lost = [rejection.trajectory_id for rejection in rejections if rejection.reason == Reason.UNRESOLVED]
        if lost:
            _log.warning("group %s: no usable record of %s in trajectories", group.group_id, ", ".join(lost))
        if admitted is not None:
            gathered.groups.append(admitted)
            gathered.admitted_ages += [version - resolved.member.oldest_version for resolved in admitted.members]
