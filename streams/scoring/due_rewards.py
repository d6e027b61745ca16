"""Turns due rewards into rewards: which judges to call, and how to use their verdicts. Pure; the caller does the I/O.

asked = to_ask(cases, rewards, joins)
judged = …                                      # over HTTP, from a function in memory, or from recorded rewards
conclude(cases, judged, rewards, joins, changes)
announcements(changes[0])
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import REWARDS, TRAJECTORIES
from headrace.streams.dead_letters.raised import raised_alert
from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.raw import Outgoing
from headrace.streams.rewards.incomplete import hiding_defect
from headrace.streams.rewards.judge_inquiry import Inquiry, inquiries
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import Verdict
from headrace.streams.scoring.feedback_join import DueReward, Join, JoinChanges
from headrace.streams.scoring.score import SOURCE, reward_message, score_or_label

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Case:
    """A due reward with its trajectory."""

    partition: int
    """Partition of ``trajectories``."""
    due: DueReward
    """The due reward."""
    trajectory: Trajectory
    """The trajectory."""

    @property
    def name(self) -> tuple[int, str]:
        """Partition and trajectory id, shared by all revisions of one trajectory."""
        return self.partition, self.due.trajectory_id


Asked: TypeAlias = dict[tuple[int, str], list[Inquiry]]
"""Inquiries by the case's name."""
Judged: TypeAlias = Mapping[tuple[int, str], Mapping[str, Verdict]]
"""Verdicts of judges by the case's name and by component."""


def to_ask(cases: Iterable[Case], rewards: Rewards, joins: Mapping[int, Join]) -> Asked:
    """Returns the inquiries for judges: once per trajectory, and none if no verdict could give it a total."""
    asked: Asked = {}
    for case in cases:
        spec = rewards.of(case.trajectory)
        pointless = case.due.unscored or hiding_defect(case.trajectory) or not spec.judges
        if not pointless and case.name not in asked:
            known = joins[case.partition].verdicts(case.due.trajectory_id)
            try:
                asked[case.name] = inquiries(spec, case.trajectory, known)
            except (MemoryError, *INTERRUPTIONS):
                raise
            except BaseException:  # its judged components get no verdict and are labelled in its reward
                logger.exception("%s: the questions for its judges could not be built", case.due.trajectory_id)
                asked[case.name] = []
    return asked


def all_questions(asked: Asked) -> list[Question]:
    """Returns every question of ``asked``; answers come back in the same order."""
    return [question for each in asked.values() for inquiry in each for question in inquiry.questions]


def conclude(
    cases: Sequence[Case],
    judged: Judged,
    rewards: Rewards,
    joins: Mapping[int, Join],
    changes: Mapping[int, JoinChanges],
) -> None:
    """Score the ``cases`` and pass the rewards to their joins; ``changes`` are by partition.

    Judged components of cases that are not in ``judged`` are ``not_judged`` unless their join knows a verdict.
    """
    for case in cases:
        join, due = joins[case.partition], case.due
        new = judged.get(case.name, {})
        reward, error = score_or_label(
            case.trajectory,
            Reference(partition=case.partition, offset=due.offset),
            rewards=rewards,
            feedback=due.feedback,
            verdicts={**join.verdicts(due.trajectory_id), **new},
            revision=due.revision,
        )
        if due.unscored:
            reward = reward.model_copy(update={"total": None, "unscored": due.unscored})
        join.decided(due, reward, new, changes[case.partition])
        if error is not None:
            place = {"partition": case.partition, "offset": due.offset}
            changes[case.partition].alerts.append(
                raised_alert(error, SOURCE, due.time_ms, topic=TRAJECTORIES.name, **place)
            )


def reward_of_deleted(due: DueReward) -> Reward | None:
    """Returns the reward of ``due`` if the trajectory can no longer be read: its facts without a total. ``None`` for
    revisions, whose earlier reward remains valid.
    """
    if due.blank is None:
        return None
    references = sorted((each.reference for each in due.feedback), key=lambda place: (place.partition, place.offset))
    return due.blank.model_copy(update={"feedback": references})


def announcements(changes: JoinChanges) -> list[Outgoing]:
    """Returns the decided rewards and the alerts as output records."""
    rewards = [
        Outgoing(REWARDS, reward_message(each.reward, origin=each.origin), each.time_ms) for each in changes.decided
    ]
    return rewards + changes.alerts
