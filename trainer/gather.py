"""Gathering: groups from the log, until a step has as many as it needs, and what became of the others."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.schemas.records import Reason, Rejection
from headrace.trainer.admission.admission import AdmissionRules, admit, places_to_read, readmit
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
    """Seconds in which nothing was there to be read."""
    resolve_s: float = 0.0
    """Seconds of reading trajectories and admitting them."""


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

    async def gather(self, offsets: dict[int, int], version: int, stop: asyncio.Event) -> Gathered | None:
        """Enough groups that policy ``version`` may be trained on; ``None`` where ``stop`` comes first.

        ``offsets`` is where the step before left off. Groups are in the log's order: by partition, then offset.
        """
        gathered = Gathered(offsets=dict(offsets))
        while not self._is_whole(gathered, version):
            if stop.is_set():
                return None
            missing = self._groups_per_step - len(gathered.groups)
            started = time.monotonic()
            arrivals = await self._intake.next_arrivals(missing, timeout_s=_POLL_S)
            gathered.wait_s += time.monotonic() - started
            started = time.monotonic()
            await self._admit(arrivals, gathered, version)
            gathered.resolve_s += time.monotonic() - started
            self._progress.gathered(len(gathered.groups))
            # A sampler may be waiting to hear what became of its work before it begins more, and we for that.
            if gathered.said and (not arrivals or len(gathered.said) >= _MANY_REJECTIONS):
                await self._announcer.announce(gathered.said)
                gathered.said.clear()
        # The batch's order must not depend on which partition answered first.
        gathered.groups.sort(key=lambda group: (group.reference.partition, group.reference.offset))
        return gathered

    def _is_whole(self, gathered: Gathered, version: int) -> bool:
        """Whether a batch can be made: enough groups, each of them still admitted now that it ships."""
        if len(gathered.groups) < self._groups_per_step:
            return False
        checked = [readmit(group, self._rules, version) for group in gathered.groups]
        gathered.groups = [group for group, _ in checked if group is not None]
        for _, rejections in checked:
            self._turn_away(rejections, gathered, version)
        gathered.admitted_ages = [
            version - resolved.member.oldest_version for group in gathered.groups for resolved in group.members
        ]
        return len(gathered.groups) == self._groups_per_step

    def _turn_away(self, rejections: Sequence[Rejection], gathered: Gathered, version: int) -> None:
        gathered.said += [announcement(rejection, run=self._rules.run) for rejection in rejections]
        gathered.rejected_ages += [version - (rejection.policy_version or 0) for rejection in rejections]

    async def _admit(self, arrivals: list[Arrival], gathered: Gathered, version: int) -> None:
        groups = [(arrival.reference, arrival.group) for arrival in arrivals if arrival.group is not None]
        places = {place for _, group in groups for place in places_to_read(group, self._rules, version)}
        trajectories = await self._intake.resolve(places)
        for reference, group in groups:
            admitted, rejections = admit(group, reference, trajectories, self._rules, version)
            self._turn_away(rejections, gathered, version)
            lost = [rejection.trajectory_id for rejection in rejections if rejection.reason == Reason.UNRESOLVED]
            if lost:
                _log.warning("group %s: no usable record of %s in trajectories", group.group_id, ", ".join(lost))
            if admitted is not None:
                gathered.groups.append(admitted)
        for arrival in arrivals:
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
