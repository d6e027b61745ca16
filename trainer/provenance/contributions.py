"""The contribution of each trajectory to a step: its tokens, and the labels by which shares are computed. Pure.

step 12 ← trajectory 019f…  57 tokens  task q17  agent search  tenant acme  spec search@1  age 1
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ValidationError

from headrace.schemas.envelope import TYPE
from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.evidence import MissingRecord, read_as

GONE = "(evidence gone)"
"""Label of a value whose record is missing."""
NOT_SET = "(none)"
"""Label of a value that the record does not set: no tenant, no cohort."""


class Dimension(StrEnum):
    """Dimensions by which shares are computed."""

    TASK = "task"
    RUN = "run"
    AGENT = "agent"
    COHORT = "cohort"
    TENANT = "tenant"
    SPEC = "spec"
    AGE = "age"
    """Versions between the sampling of the trajectory's oldest token and its training."""


class TrajectoryLabels(BaseModel):
    """The few fields of a ``Trajectory`` that are needed; tokens are not decoded."""

    trajectory_id: str
    started: TrajectoryStarted | None = None
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One trajectory in one step."""

    step: int
    """The step."""
    version: int
    """The version that it made."""
    trajectory_id: str
    """The trajectory."""
    group_id: str
    """Its group."""
    tokens: int | None
    """Tokens trained; ``None`` if both its group's and its own record are missing."""
    reward: float | None
    """Its reward; ``None`` if its group's record is missing."""
    labels: Mapping[Dimension, str]
    """Its value in each dimension, or :data:`GONE` or :data:`NOT_SET`."""
    place: Place
    """Partition and offset of its record in ``trajectories``, which may have expired."""


def labels_of(record: KafkaRecord, trajectory_id: str) -> TrajectoryLabels | MissingRecord:
    """Returns the labels of a record of ``trajectories``; a :class:`MissingRecord` if it cannot be read."""
    if dict(record.headers).get(TYPE) == Trajectory.TYPE.encode() and record.value is not None:
        try:
            return TrajectoryLabels.model_validate_json(record.value)
        except ValidationError:
            pass  # the full decoding below reports the problem
    read = read_as(record, trajectory_id, Trajectory)
    return read if isinstance(read, MissingRecord) else TrajectoryLabels.model_validate(read, from_attributes=True)


def contributions(
    step: Step, groups: Mapping[Place, TrainingGroup], trajectories: Mapping[Place, TrajectoryLabels]
) -> Iterator[Contribution]:
    """Yield what ``step`` was trained on, in the batch's order, from the records that were found."""
    for trained in step.groups:
        group = groups.get(place_of(trained.group))
        if group is not None and group.group_id != trained.group_id:
            group = None  # the topic was recreated: the place holds another record
        members = {} if group is None else {member.trajectory_id: member for member in group.members}
        for trajectory_id, reference in zip(trained.trajectory_ids, trained.trajectories, strict=True):
            member, found = members.get(trajectory_id), trajectories.get(place_of(reference))
            if found is not None and found.trajectory_id != trajectory_id:
                found = None
            age = None if member is None else step.version - 1 - member.oldest_version
            tokens = member.sampled_tokens if member else found.sampled_tokens if found else None
            yield Contribution(
                step.step,
                step.version,
                trajectory_id,
                trained.group_id,
                tokens,
                None if member is None else member.reward,
                _labels(group, found, age),
                place_of(reference),
            )


def _labels(group: TrainingGroup | None, found: TrajectoryLabels | None, age: int | None) -> dict[Dimension, str]:
    started = found.started if found else None
    # The group's record is retained longer than the trajectory's: values in both come from the available one.
    task = started.task_id if started else group.task_id if group else None
    cohort = group.cohort_key if group else started.cohort_key if started else None
    recorded = group is not None or started is not None
    return {
        Dimension.TASK: task or GONE,
        Dimension.RUN: (started.run if started else group.run if group else None) or GONE,
        Dimension.AGENT: started.agent if started else GONE if found is None else NOT_SET,
        Dimension.COHORT: (cohort or NOT_SET) if recorded else GONE,
        Dimension.TENANT: (started.tenant or NOT_SET) if started else GONE if found is None else NOT_SET,
        Dimension.SPEC: group.spec if group else GONE,
        Dimension.AGE: GONE if age is None else str(age),
    }
