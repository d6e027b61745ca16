"""Scores a trajectory. Every trajectory gets one reward record, with a total or with the reason for having none."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.task_labels import is_tripwire, task_source
from headrace.schemas.wire import Message, record_message
from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.rewards.incomplete import hiding_defect
from headrace.streams.rewards.registry import DEFAULTS, Rewards, parse_rewards
from headrace.streams.rewards.spec import Feedback, RewardSpec, Score, Verdict
from headrace.streams.structs import encode_struct, writing

logger = logging.getLogger(__name__)

SOURCE = "/streams/score"
"""``ce_source`` of rewards."""

REWARDS_OF_AGENTS = parse_rewards(DEFAULTS)
"""The default reward spec of each agent."""

PlainReward, PlainReference, PlainComponent = writing(Reward), writing(Reference), writing(Component)
"""A reward, its reference and its components as structs, not validated: of a trajectory that was read as a struct,
under a spec that comes with headrace, so that each of their values is valid. They take a fifth of the time of the
models."""

RAISED = "raised"
"""Reason for no total: scoring itself raised. A component that raises has a separate label."""


def score(
    trajectory: Trajectory,
    reference: Reference,
    *,
    rewards: Rewards = REWARDS_OF_AGENTS,
    feedback: Sequence[Feedback] = (),
    verdicts: Mapping[str, Verdict] | None = None,
    revision: int = 0,
    make: type[Reward] = Reward,
) -> Reward:
    """Returns the reward record of ``trajectory``, which is at ``reference`` in ``trajectories``.

    ``feedback`` is all feedback so far, in any order; ``verdicts`` are those of judges, by the name of their term.
    ``revision`` is the number of earlier rewards of this trajectory under this spec. ``make``: ``Reward`` or
    :data:`PlainReward`.
    """
    spec = rewards.of(trajectory)
    given = sorted(feedback, key=lambda each: (each.reference.partition, each.reference.offset))
    hidden = hiding_defect(trajectory)
    part = PlainComponent if make is PlainReward else Component
    scored = Score({}, None, hidden.value) if hidden else spec.score(trajectory, given, verdicts, make=part)
    references = [each.reference for each in given]
    return _reward(trajectory, reference, spec, scored, feedback=references, revision=revision, make=make)


def score_or_label(
    trajectory: Trajectory,
    reference: Reference,
    *,
    rewards: Rewards = REWARDS_OF_AGENTS,
    feedback: Sequence[Feedback] = (),
    verdicts: Mapping[str, Verdict] | None = None,
    revision: int = 0,
    make: type[Reward] = Reward,
) -> tuple[Reward, BaseException | None]:
    """As :func:`score`; if that raises, returns a reward without a total, labelled ``raised``, and the exception."""
    try:
        options: dict[str, Any] = {"feedback": feedback, "verdicts": verdicts, "revision": revision, "make": make}
        return score(trajectory, reference, rewards=rewards, **options), None
    except (MemoryError, *INTERRUPTIONS):
        raise
    except BaseException as error:  # a user's function may end as a program does
        logger.exception("%s cannot be scored: its reward has no total", trajectory.trajectory_id)
        labelled = Score({}, None, RAISED)
        return _reward(trajectory, reference, rewards.of(trajectory), labelled, revision=revision, make=make), error


def unscored(trajectory: Trajectory, reference: Reference, why: str, *, rewards: Rewards = REWARDS_OF_AGENTS) -> Reward:
    """Returns a reward record of ``trajectory`` without total and components, for the reason ``why``."""
    return _reward(trajectory, reference, rewards.of(trajectory), Score({}, None, why))


def _reward(
    trajectory: Trajectory,
    reference: Reference,
    spec: RewardSpec,
    scored: Score,
    *,
    feedback: Sequence[Reference] = (),
    revision: int = 0,
    make: type[Reward] = Reward,
) -> Reward:
    started, versions = trajectory.started, trajectory.versions
    return make(
        trajectory_id=trajectory.trajectory_id,
        trajectory=reference,
        **(
            {
                "agent": started.agent,
                "run": started.run,
                "task_id": started.task_id,
                "group_id": started.group_id,
                "group_size": started.group_size,
                "cohort_key": started.cohort_key,
                "purpose": started.purpose,
                "role": started.role,
                "tenant": started.tenant,
                "task_source": task_source(started.task),
                "tripwire": is_tripwire(started.task),
                **_link(started),
            }
            if started
            else {}
        ),
        spec=spec.label,
        components=scored.components,
        total=scored.total,
        maximum=spec.maximum,
        unscored=scored.unscored,
        revision=revision,
        feedback=list(feedback),
        defects=list(dict.fromkeys(trajectory.defects)),
        oldest_version=versions[0] if versions else None,
        newest_version=versions[-1] if versions else None,
        sampled_tokens=trajectory.sampled_tokens,
        turns=trajectory.turn_count,
        status=trajectory.status,
        ended_ms=trajectory.ended_ms,
        hints=scored.hints,
        hints_refused=scored.hints_refused,
        continuations=trajectory.continuations,
    )


def _link(started: TrajectoryStarted) -> dict[str, str | None]:
    """Returns the fields by which the reward of a continuation is found for its parent."""
    if started.fork_turn is None:
        return {}
    return {"parent_trajectory_id": started.parent_trajectory_id, "fork_group_id": started.fork_group_id}


def reward_message(reward: Reward, *, origin: str | None = None) -> Message:
    """Returns ``reward`` as a record of ``rewards``. Its id is derived from trajectory, spec and revision.

    ``origin`` is the ``traceparent`` of the trajectory's record. A continuation's reward goes to the partition of its
    parent's group, which may wait for it.
    """
    revision = (reward.revision,) if reward.revision else ()
    return record_message(
        reward,
        id=derived_id(reward.TYPE, reward.trajectory_id, reward.spec, *revision),
        key=reward.fork_group_id or reward.group_id or reward.cohort_key or reward.trajectory_id,
        source=SOURCE,
        time_ms=reward.ended_ms,
        subject=reward.trajectory_id,
        origin=origin,
        **({"to_json": encode_struct} if isinstance(reward, PlainReward) else {}),
    )
