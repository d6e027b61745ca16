"""Makes observations: what monitors need of a record, as numbers and labels. Pure.

    Trajectory with turns search, search, answer  →  {"of": "attempt", "values": {"turns": 3, "tool_calls": 2, …},
                                                      "labels": ["^>search>search", "search>search>answer", …]}

A value that does not exist for a trajectory is left out: the share of finished sub-agents where none was started, the
outcome where there is none. A value for which absence means "no" is 0.
"""

from collections.abc import Iterable
from typing import TypeAlias

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import EndStatus, FeedbackGiven, Purpose, Role, ToolErrorClass
from headrace.schemas.records.group import ZERO_VARIANCE, Reason, Rejection
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.watch import MAX_OBSERVED, Lane, Observation
from headrace.schemas.task_labels import difficulty, is_tripwire, marked, task_source
from headrace.streams.watch.actions import CALL, SAY, actions, calls, longest_streak, prune_streak, trigrams
from headrace.streams.watch.window import VALUE, WEIGHT

Observed: TypeAlias = Trajectory | Reward | Rejection | FeedbackGiven
"""Records that observations are made of."""

MAX_COMPONENTS = 16
"""Most components of a reward that are watched: the first by name."""
MAX_COMPONENT = MAX_NAME - 32
"""Longest name of a watched component: monitors put a word before it."""
DISAGREEMENT = "disagreement"
"""Detail of a judged component: largest difference between its rubrics."""

EXPECTED_REASONS: frozenset[str] = frozenset(
    {
        *(Reason.EVALUATION, Reason.FORKED, Reason.RESTARTED, Reason.FROZEN_ROLE, Reason.NO_CONSENT),
        *(*ZERO_VARIANCE, Reason.NO_BASELINE),
        *(Reason.INCOMPLETE_GROUP, Reason.LATE_FOR_GROUP, Reason.SURPLUS, Reason.STALE, Reason.STALE_TOKENS),
        *(Reason.OTHER_RUN, Reason.FOREIGN_GROUP, Reason.UNRESOLVED, Reason.CRASHED),
        Reason.ADMISSION_PAUSED,
    }
)
"""Reasons that an honest run has often, and that depend on the data or on timing. All others are drops: the policy may
have found that a trajectory which is not trained cannot fail."""


def observe(record: Observed, trajectory_id: str, part: str = "") -> Observation:
    """Returns the observation of ``record``, which is about ``trajectory_id``. ``part``: the id of a feedback."""
    if isinstance(record, FeedbackGiven):
        return observe_feedback(record, trajectory_id, part)
    if record.TYPE == Trajectory.TYPE:
        return observe_attempt(record)  # type: ignore[arg-type]  # a struct with its fields, as the readers give it
    return observe_reward(record) if record.TYPE == Reward.TYPE else observe_rejection(record)  # type: ignore[arg-type]


def observe_attempt(trajectory: Trajectory) -> Observation:
    """Returns the observation of a trajectory: its behaviour."""
    started = trajectory.started
    done = actions(trajectory)
    uses = [use for turn in trajectory.turns for use in turn.tools]
    task = started.task if started else {}
    values = {
        "turns": float(len(trajectory.turns)),
        "tokens": float(trajectory.sampled_tokens),
        "prompt_tokens": float(_prompt_tokens(trajectory)),
        "tool_calls": float(len(uses)),
        "invalid": float(any(use.error_class == ToolErrorClass.INVALID_ARGUMENTS for use in uses)),
        "talks": float(SAY in done),
        "repeats": float(longest_streak(done)),
        "prune_streak": float(prune_streak(trajectory)),
        "answered": float(trajectory.answer not in (None, "", [], {})),
        "exhausted": float(trajectory.status in (EndStatus.BUDGET_EXHAUSTED, EndStatus.TURNS_EXHAUSTED)),
        "left": float(trajectory.status in (None, EndStatus.ABORTED)),
        "subagents": float(trajectory.subagents_assigned),
        "idle": float(max(0, trajectory.subagents_assigned - trajectory.subagents_finished)),
        "marked": float(bool(ids := marked(task)) and _mentions(trajectory, ids)),
        "evaluates": float(started is not None and started.purpose == Purpose.EVALUATE),
        "frozen": float(started is not None and started.role == Role.FROZEN),
        **{f"{CALL}{name}": float(count) for name, count in calls(trajectory, done).items()},
    }
    if trajectory.subagents_assigned:
        values["unfinished"] = 1.0 - min(1.0, trajectory.subagents_finished / trajectory.subagents_assigned)
    if trajectory.total_steps:
        values["serial"] = min(1.0, trajectory.critical_steps / trajectory.total_steps)
    if trajectory.outcome is not None:
        values["outcome"] = float(trajectory.outcome)
        if is_tripwire(task):
            values["tripped"] = float(trajectory.outcome > 0)
    versions = trajectory.versions
    return Observation(
        of=Lane.ATTEMPT,
        trajectory_id=trajectory.trajectory_id,
        run=started.run if started else "",
        agent=started.agent if started else "",
        task_source=task_source(task),
        difficulty=difficulty(task)[:MAX_NAME],
        tenant=(started.tenant or "") if started else "",
        tools_offered=started.tools_offered if started else "",
        version=versions[-1] if versions else None,
        values=values,
        labels=[gram[:MAX_NAME] for gram in trigrams(done)],
    )


def observe_reward(reward: Reward) -> Observation:
    """Returns the observation of a reward: its score by component, and why it is not trained."""
    dropped = [reason for reason in map(str, reward.defects) if reason not in EXPECTED_REASONS]
    if reward.unscored is not None and not dropped:
        dropped = [reward.unscored[:MAX_NAME]]
    components = dict(sorted(reward.components.items())[:MAX_COMPONENTS])
    values = {
        "turns": float(reward.turns),
        "tokens": float(reward.sampled_tokens),
        "dropped": float(bool(dropped)),
        "feedback": float(bool(reward.feedback)),
        "evaluates": float(reward.purpose == Purpose.EVALUATE),
        "frozen": float(reward.role == Role.FROZEN),
        **{VALUE + name[:MAX_COMPONENT]: each.value for name, each in components.items()},
        **{WEIGHT + name[:MAX_COMPONENT]: each.weight for name, each in components.items()},
    }
    spreads = [each.details[DISAGREEMENT] for each in components.values() if DISAGREEMENT in each.details]
    if spreads:
        values[DISAGREEMENT] = _within(max(spreads))
    if reward.total is not None:
        values["total"] = reward.total
        if reward.tripwire:
            values["tripped"] = float(reward.total > (0.5 * reward.maximum if reward.maximum else 0.0))
    if reward.maximum is not None:
        values["maximum"] = _within(reward.maximum)
    return Observation(
        of=Lane.REWARD,
        trajectory_id=reward.trajectory_id,
        part=reward.spec,
        run=reward.run,
        agent=reward.agent,
        task_source=reward.task_source,
        spec=reward.spec,
        group=reward.group_id or "",
        tenant=reward.tenant or "",
        version=reward.newest_version,
        values=values,
        labels=list(dict.fromkeys(dropped)),
    )


def observe_rejection(rejection: Rejection) -> Observation:
    """Returns the observation of a rejection; one for a reason that honest runs have often counts as not dropped."""
    drops = rejection.reason not in EXPECTED_REASONS
    return Observation(
        of=Lane.FATE,
        trajectory_id=rejection.trajectory_id,
        run=rejection.run,
        version=rejection.policy_version,
        values={
            "dropped": float(drops),
            **({"reward": rejection.reward} if rejection.reward is not None else {}),
        },
        labels=[str(rejection.reason)] if drops else [],
    )


def observe_feedback(feedback: FeedbackGiven, trajectory_id: str, id: str) -> Observation:
    """Returns the observation of a feedback with the id ``id``, about ``trajectory_id``."""
    delay = {"delay_s": float(feedback.delay_s)} if feedback.delay_s is not None else {}
    return Observation(
        of=Lane.FEEDBACK,
        trajectory_id=trajectory_id[:MAX_NAME],
        part=id[:MAX_NAME],
        spec=feedback.signal,
        values={"value": float(feedback.value), **delay},
    )


def _within(value: float) -> float:
    """Returns ``value``, or the bound that it exceeds: details and maxima of rewards may be any number."""
    return max(-MAX_OBSERVED, min(value, MAX_OBSERVED))


def _prompt_tokens(trajectory: Trajectory) -> int:
    """Returns the number of context tokens before the first sampled one; 0 without tokens."""
    if not trajectory.segments:
        return 0
    mask = bytes(trajectory.segments[0].loss_mask)
    first = mask.find(1)
    return first if first >= 0 else len(mask)


def _mentions(trajectory: Trajectory, ids: Iterable[str]) -> bool:
    """Whether a tool that returned was called with one of ``ids`` in its arguments."""
    wanted = tuple(ids)
    for turn in trajectory.turns:
        for use in turn.tools:
            called = use.arguments if use.status == "ok" else {}
            if any(id in text for text in _texts(called) for id in wanted):
                return True
    return False


def _texts(value: object) -> Iterable[str]:
    """Yields the texts in a JSON value, also names of objects and numbers: as they are, because its encoding escapes
    quotes and backslashes."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as fields:
                waiting += [*fields.keys(), *fields.values()]
            case list() as items:
                waiting += items
            case each if each is not None:
                yield str(each)
