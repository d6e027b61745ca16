"""Reads a run's steps in the log, and the records that a step names."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

from headrace.schemas.envelope import ID
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import STEPS, TRAINING, TRAJECTORIES, WEIGHTS
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.evidence import MissingRecord, read_all, read_as
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.rebuild import StepRecords

_MANY_STEPS = 10_000
"""Up to this many steps are recognised by their ids; in a larger range each step is decoded."""


async def runs_in(log: LogReader) -> list[str]:
    """Returns the names of all runs that have published a version, sorted."""
    keys = {record.key async for record in log.scan(WEIGHTS)}
    return sorted(key.decode(errors="replace") for key in keys if key)


async def steps_of(
    log: LogReader, run: str, first: int = 1, last: int | None = None
) -> AsyncIterator[Step | MissingRecord]:
    """Yield steps ``first`` to ``last`` (default: all) of ``run`` in order, once; ``MissingRecord`` if unreadable."""
    wanted = None
    if last is not None and last - first < _MANY_STEPS:
        wanted = {derived_id(Step.TYPE, run, number).encode() for number in range(first, last + 1)}
    newest = 0
    async for record in log.scan(STEPS):
        # A step may be large: key and id decide which to decode.
        if record.key != run.encode() or (wanted is not None and dict(record.headers).get(ID) not in wanted):
            continue
        step = read_as(record, run, Step)
        if isinstance(step, MissingRecord):
            yield step
        elif max(first, newest + 1) <= step.step and (last is None or step.step <= last):
            newest = step.step
            yield step


async def evidence_for(log: LogReader, step: Step) -> StepRecords:
    """Read all records that ``step`` names into memory: as much as its trainer held."""
    group_places = {place_of(group.group): group.group_id for group in step.groups}
    places = trajectory_places([step])
    groups, no_groups = await log.read_at(TRAINING, group_places)
    trajectories, no_trajectories = await log.read_at(TRAJECTORIES, places)
    read_groups, bad_groups = read_all(groups, group_places, partial(read_as, model=TrainingGroup))
    read_trajectories, bad_trajectories = read_all(trajectories, places, partial(read_as, model=Trajectory))
    missing = (*no_groups, *no_trajectories, *bad_groups, *bad_trajectories)
    return StepRecords(read_groups, read_trajectories, missing)


def trajectory_places(steps: Sequence[Step]) -> dict[Place, str]:
    """Returns the places of the trajectories that ``steps`` trained, each with its id."""
    return {
        place_of(reference): trajectory_id
        for step in steps
        for group in step.groups
        for trajectory_id, reference in zip(group.trajectory_ids, group.trajectories, strict=True)
    }
