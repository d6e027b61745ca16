"""An attempt as the filters of the supervised stages see it: what its reward says, and what its record looks like.

Tokens stay in the log: what a filter needs of a trajectory is a few numbers.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from headrace.schemas.events import EndStatus, Purpose, Role, ToolErrorClass
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Trajectory

HARMLESS = frozenset(
    {
        Defect.NO_LOGPROBS,
        Defect.UNKNOWN_VERSION,
        Defect.OTHER_RUN,
        Defect.TRUNCATED_SAMPLING,
        Defect.GREEDY_SAMPLING,
        Defect.ALTERED_SAMPLING,
        Defect.UNKNOWN_SAMPLING,
    }
)
"""Defects that keep a trajectory from reinforcement and not from imitation: its tokens are what they are."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a trajectory's record looks like."""

    sampled_tokens: int
    """Tokens that would be imitated."""
    longest: int
    """Tokens of its longest segment that holds any."""
    smallest_id: int
    """Smallest token id."""
    largest_id: int
    """Largest token id."""
    invalid_calls: int
    """Tool calls whose arguments the tool could not take."""
    unfinished_calls: int
    """Tool calls that never came back."""
    sampled_sha256: str
    """Hash of the sampled token ids: two attempts with the same did the same."""


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A scored trajectory."""

    trajectory_id: str
    """The trajectory."""
    place: Place
    """Where its record stands."""
    task_id: str
    """Its task; an attempt without one is a task of its own."""
    group_id: str | None
    """Its group."""
    total: float | None
    """Its reward; ``None`` where there is none."""
    maximum: float | None
    """Largest possible reward, where the spec knows one."""
    components: dict[str, float] = field(default_factory=dict)
    """Raw value of every component, by name."""
    status: EndStatus | None = None
    """How it ended."""
    turns: int = 0
    """Model calls, and one more where a tool was called before the first."""
    defects: tuple[Defect, ...] = ()
    """Labels of the trajectory."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or measurement."""
    role: Role = Role.TRAINABLE
    """Trainable or frozen."""
    revision: int = 0
    """Which of the trajectory's rewards it is."""
    form: Form | None = None
    """What its record looks like; ``None`` where it was not, or could not be, read."""
    group_mean: float | None = None
    """Mean reward of its group; ``None`` where it has none, or is its only scored member: :func:`with_group_means`."""


def attempt_of(reward: Reward) -> ScoredTrajectory:
    """What ``reward`` says of its trajectory."""
    return ScoredTrajectory(
        trajectory_id=reward.trajectory_id,
        place=(reward.trajectory.partition, reward.trajectory.offset),
        task_id=reward.task_id or reward.trajectory_id,
        group_id=reward.group_id,
        total=reward.total,
        maximum=reward.maximum,
        components={name: component.value for name, component in reward.components.items()},
        status=reward.status,
        turns=reward.turns,
        defects=tuple(reward.defects),
        purpose=reward.purpose,
        role=reward.role,
        revision=reward.revision,
    )


def with_group_means(attempts: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """``attempts`` with the means of their groups: of all members that have a reward, whatever else keeps one of them
    from being imitated. Evaluations and frozen roles are members of none, as where advantages are made."""
    groups: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.group_id is not None and attempt.total is not None and _is_member(attempt):
            groups[attempt.group_id].append(attempt.total)
    means = {group: math.fsum(totals) / len(totals) for group, totals in groups.items() if len(totals) > 1}
    return [replace(attempt, group_mean=means.get(attempt.group_id or "")) for attempt in attempts]


def _is_member(attempt: ScoredTrajectory) -> bool:
    return attempt.purpose is not Purpose.EVALUATE and attempt.role is not Role.FROZEN


def form_of(trajectory: Trajectory) -> Form:
    """What the record of a trajectory looks like."""
    uses = [use for turn in trajectory.turns for use in turn.tools]
    digest, sampled, longest, smallest, largest = hashlib.sha256(), 0, 0, 0, 0
    for segment in trajectory.segments:
        ids = [token for token, mine in zip(segment.token_ids, segment.loss_mask, strict=True) if mine]
        if ids:
            digest.update(f"{ids}\n".encode())
            sampled += len(ids)
            longest = max(longest, len(segment.token_ids))
            smallest, largest = min(smallest, *segment.token_ids), max(largest, *segment.token_ids)
    return Form(
        sampled_tokens=sampled,
        longest=longest,
        smallest_id=smallest,
        largest_id=largest,
        invalid_calls=sum(use.error_class is ToolErrorClass.INVALID_ARGUMENTS for use in uses),
        unfinished_calls=sum(use.status is None for use in uses),
        sampled_sha256=digest.hexdigest(),
    )


def blocking(defects: Collection[Defect]) -> Defect | None:
    """The first of ``defects`` that keeps a trajectory from being imitated."""
    return next((defect for defect in defects if defect not in HARMLESS), None)


def draw(seed: int, *of: str) -> float:
    """A number in [0, 1) that follows from its arguments alone: the same on every machine, in any order of reading."""
    digest = hashlib.sha256("\n".join([str(seed), *of]).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
