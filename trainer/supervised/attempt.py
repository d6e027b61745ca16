"""A scored trajectory (an attempt at a task) as input of the supervised stages' filters.

Tokens stay in the log: a filter needs only the reward and a few numbers of the trajectory's record.
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
"""Defects that exclude a trajectory from reinforcement but not from imitation: they do not affect its tokens."""


@dataclass(frozen=True, slots=True)
class Form:
    """Properties of a trajectory's record that filters need."""

    sampled_tokens: int
    """Tokens that would be imitated."""
    longest: int
    """Tokens of its longest segment with sampled tokens."""
    smallest_id: int
    """Smallest token id."""
    largest_id: int
    """Largest token id."""
    invalid_calls: int
    """Tool calls with invalid arguments."""
    unfinished_calls: int
    """Tool calls without a result."""
    sampled_sha256: str
    """Hash of the sampled token ids, equal for repeated attempts."""


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A scored trajectory."""

    trajectory_id: str
    """The trajectory."""
    place: Place
    """The place of its record."""
    task_id: str
    """Its task; without a task, the trajectory's id."""
    group_id: str | None
    """Its group."""
    total: float | None
    """Its reward; ``None`` if it has none."""
    maximum: float | None
    """Largest possible reward, if the spec declares one."""
    components: dict[str, float] = field(default_factory=dict)
    """Raw value of every component, by name."""
    status: EndStatus | None = None
    """How it ended."""
    turns: int = 0
    """Model calls, plus one if a tool was called before the first."""
    defects: tuple[Defect, ...] = ()
    """Labels of the trajectory."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or measurement."""
    role: Role = Role.TRAINABLE
    """Trainable or frozen."""
    revision: int = 0
    """Revision of the reward."""
    form: Form | None = None
    """Properties of its record; ``None`` if it was not read, or cannot be."""
    group_mean: float | None = None
    """Mean reward of its group; ``None`` without a group or other scored members: :func:`with_group_means`."""


def attempt_of(reward: Reward) -> ScoredTrajectory:
    """Returns the attempt that ``reward`` scores, without its record."""
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
    """Returns ``attempts`` with the means of their groups over all members with a reward, whether or not they can be
    imitated. Evaluations and frozen roles do not count, as in advantages."""
    groups: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.group_id is not None and attempt.total is not None and _is_member(attempt):
            groups[attempt.group_id].append(attempt.total)
    means = {group: math.fsum(totals) / len(totals) for group, totals in groups.items() if len(totals) > 1}
    return [replace(attempt, group_mean=means.get(attempt.group_id or "")) for attempt in attempts]


def _is_member(attempt: ScoredTrajectory) -> bool:
    return attempt.purpose is not Purpose.EVALUATE and attempt.role is not Role.FROZEN


def form_of(trajectory: Trajectory) -> Form:
    """Returns the properties of a trajectory's record."""
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
    """Returns the first of ``defects`` that excludes a trajectory from imitation."""
    return next((defect for defect in defects if defect not in HARMLESS), None)


def draw(seed: int, *of: str) -> float:
    """Returns a number in [0, 1) that depends on its arguments alone, on every machine and in any reading order."""
    digest = hashlib.sha256("\n".join([str(seed), *of]).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
