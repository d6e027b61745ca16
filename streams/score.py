"""Score: a trajectory → its reward. Every trajectory gets one record, with a total or with the reason for none."""

from collections.abc import Mapping

from headrace.schemas.ids import derived_id
from headrace.schemas.records import Defect, Reference, Reward, Trajectory
from headrace.schemas.wire import Message, record_message
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.spec import RewardSpec, Score

SOURCE = "/streams/score"
"""``ce_source`` of rewards."""

SPECS: Mapping[str, RewardSpec] = {"search": SEARCH}
"""Agent name → its reward; every other agent has ``outcome@1``."""

INCOMPLETE_FACTS = frozenset(
    {
        Defect.MISSING_EVENTS,
        Defect.NO_START,
        Defect.NO_END,
        Defect.BAD_EVENT,
        Defect.OVERSIZE,
    }
)
"""Defects that may hide what a reward rests on (the task, a tool result, the answer): no total under these. The others
concern tokens only; such trajectories are scored, compared with their group and then not trained."""


def spec_for(trajectory: Trajectory) -> RewardSpec:
    """The reward of the trajectory's agent."""
    return SPECS.get(trajectory.started.agent, OUTCOME) if trajectory.started else OUTCOME


def score(trajectory: Trajectory, reference: Reference) -> Reward:
    """The reward record of ``trajectory``, which stands at ``reference`` in ``trajectories``."""
    spec = spec_for(trajectory)
    hidden = next((defect for defect in trajectory.defects if defect in INCOMPLETE_FACTS), None)
    scored = Score({}, None, hidden.value) if hidden else spec.score(trajectory)
    started, versions = trajectory.started, trajectory.versions
    return Reward(
        trajectory_id=trajectory.trajectory_id,
        trajectory=reference,
        **(
            {
                "run": started.run,
                "task_id": started.task_id,
                "group_id": started.group_id,
                "group_size": started.group_size,
                "purpose": started.purpose,
                "role": started.role,
            }
            if started
            else {}
        ),
        spec=spec.label,
        components=scored.components,
        total=scored.total,
        maximum=spec.maximum,
        unscored=scored.unscored,
        defects=trajectory.defects,
        oldest_version=versions[0] if versions else None,
        newest_version=versions[-1] if versions else None,
        sampled_tokens=trajectory.sampled_tokens,
        turns=len(trajectory.turns),
        status=trajectory.status,
        ended_ms=trajectory.ended_ms,
    )


def reward_message(reward: Reward) -> Message:
    """``reward`` as a record of ``rewards``; scored twice under one spec, a trajectory has one record id."""
    return record_message(
        reward,
        id=derived_id(Reward.TYPE, reward.trajectory_id, reward.spec),
        key=reward.group_id or reward.trajectory_id,
        source=SOURCE,
        time_ms=reward.ended_ms,
        subject=reward.trajectory_id,
    )
