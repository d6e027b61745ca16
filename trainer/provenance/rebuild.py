"""Rebuilds a step's batch from the records that the step names, and compares it with the step's hash.

Pure: :mod:`headrace.trainer.provenance.log_reader` reads the records. The batch is made by the trainer's own code
(:mod:`headrace.trainer.batches.recipe`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.step import BatchRecipe, Step, TrainedGroup
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import TRAINING, TRAJECTORIES
from headrace.trainer.admission.admission import place_of
from headrace.trainer.batches.advantages import members_std, reward_std
from headrace.trainer.batches.batch import AdmittedGroup, Batch, ResolvedMember, make_batch
from headrace.trainer.batches.recipe import UnknownRecipe, prepare_groups
from headrace.trainer.losses.settings import AdvantageScale
from headrace.trainer.provenance.evidence import MissingRecord, another


class RebuildResult(StrEnum):
    """The result of rebuilding a step."""

    MATCHES = "matches"
    """A bit-identical batch."""
    DIFFERS = "differs"
    """All records exist, but they make another batch."""
    INCOMPLETE = "incomplete"
    """Records that the step names are missing."""
    UNKNOWN_RECIPE = "unknown_recipe"
    """The batch was made by a recipe that this code does not implement."""


@dataclass(frozen=True, slots=True)
class StepRecords:
    """The records that a step names, found and missing."""

    groups: Mapping[Place, TrainingGroup]
    """By their place in ``training``."""
    trajectories: Mapping[Place, Trajectory]
    """By their place in ``trajectories``."""
    missing: Sequence[MissingRecord] = ()
    """The missing records."""


@dataclass(frozen=True, eq=False, slots=True)
class Rebuilt:
    """A rebuilt step."""

    step: Step
    """The step's record."""
    verdict: RebuildResult
    """The result."""
    groups: tuple[AdmittedGroup, ...] = ()
    """Groups as trained, with the advantages of the batch; empty without a batch."""
    batch: Batch | None = None
    """The batch; ``None`` if records are missing or make no batch."""
    sha256: str | None = None
    """The batch's hash."""
    differing: tuple[str, ...] = ()
    """Arrays of the batch that differ; also empty if the step's record has no hashes of arrays."""
    problem: str | None = None
    """Why there is no batch although no record is missing."""
    missing: tuple[MissingRecord, ...] = ()
    """Records that are missing at the places named by the step."""
    assumed: BatchRecipe | None = field(default=None)
    """The recipe that was tried for a step without one."""


def rebuild(step: Step, evidence: StepRecords) -> Rebuilt:
    """Rebuild the batch of ``step`` from ``evidence``, and compare it with the step's hash.

    For a step recorded before recipes existed, each scale of advantages is tried; shuffled advantages cannot be
    rebuilt.
    """
    groups, missing = _resolve(step, evidence)
    if missing:
        return Rebuilt(step, RebuildResult.INCOMPLETE, missing=tuple(missing))
    if step.recipe is not None:
        return _compare(step, groups, step.recipe)
    tried = [_compare(step, groups, BatchRecipe(advantage_scale=scale)) for scale in AdvantageScale]
    return next((each for each in tried if each.verdict is RebuildResult.MATCHES), tried[0])


def _resolve(step: Step, evidence: StepRecords) -> tuple[list[AdmittedGroup], list[MissingRecord]]:
    missing = list(evidence.missing)
    known = {(each.topic, each.partition, each.offset) for each in missing}
    groups = []
    for trained in step.groups:
        record = evidence.groups.get(place_of(trained.group))
        wrong = [] if record is None else _contradictions(trained, record, evidence.trajectories)
        missing += [each for each in wrong if (each.topic, each.partition, each.offset) not in known]
        if record is not None and not wrong and not missing:
            groups.append(_admitted(trained, record, evidence.trajectories))
    return groups, missing


def _contradictions(
    trained: TrainedGroup, record: TrainingGroup, trajectories: Mapping[Place, Trajectory]
) -> list[MissingRecord]:
    """Returns the found records that are not the ones that the step means."""
    wrong = []
    if record.group_id != trained.group_id:
        wrong.append(another(TRAINING.name, place_of(trained.group), trained.group_id, f"group {record.group_id}"))
    members = {member.trajectory_id: place_of(member.trajectory) for member in record.members}
    for trajectory_id, reference in zip(trained.trajectory_ids, trained.trajectories, strict=True):
        place = place_of(reference)
        found = trajectories.get(place)
        if found is not None and found.trajectory_id != trajectory_id:
            wrong.append(another(TRAJECTORIES.name, place, trajectory_id, f"trajectory {found.trajectory_id}"))
        elif record.group_id == trained.group_id and members.get(trajectory_id) != place:
            where = f"a group without {trajectory_id} at this place"
            wrong.append(another(TRAINING.name, place_of(trained.group), trained.group_id, where))
    return wrong


def _admitted(trained: TrainedGroup, record: TrainingGroup, trajectories: Mapping[Place, Trajectory]) -> AdmittedGroup:
    members = {member.trajectory_id: member for member in record.members}
    resolved = (
        ResolvedMember(members[trajectory_id], trajectories[place_of(reference)])
        for trajectory_id, reference in zip(trained.trajectory_ids, trained.trajectories, strict=True)
    )
    return AdmittedGroup(trained.group_id, trained.group, tuple(resolved), reward_std(record), members_std(record))


def _compare(step: Step, groups: Sequence[AdmittedGroup], recipe: BatchRecipe) -> Rebuilt:
    assumed = recipe if step.recipe is None else None
    try:
        prepared = prepare_groups(groups, recipe, step=step.step)
    except UnknownRecipe as error:
        return Rebuilt(step, RebuildResult.UNKNOWN_RECIPE, problem=str(error))
    try:
        batch = make_batch(prepared, max_hinted_turns=recipe.max_hinted_turns)
    except ValueError as error:
        return Rebuilt(step, RebuildResult.DIFFERS, problem=str(error), assumed=assumed)
    sha256 = batch.sha256(recipe.format)
    arrays = batch.array_sha256(recipe.format)
    return Rebuilt(
        step,
        RebuildResult.MATCHES if sha256 == step.data_sha256 else RebuildResult.DIFFERS,
        groups=tuple(prepared),
        batch=batch,
        sha256=sha256,
        differing=tuple(name for name, known in step.array_sha256.items() if arrays.get(name) != known),
        assumed=assumed,
    )
