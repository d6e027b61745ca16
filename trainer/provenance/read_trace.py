"""Reads the trace of a trajectory: from the small topics without retention to the large ones with it.

Steps and rejections name the places of groups and trajectories, so that these are fetched by offset, and expired
records are distinguished from ones that never existed.
"""

from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.records.group import Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.evidence import Absence, Found, MissingRecord, R, read_as
from headrace.trainer.provenance.find import SearchProgress, find_all, find_first, has_subject, mentions
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.read_version import read_graph
from headrace.trainer.provenance.trace import EventFound, EventsLeft, Trace, TrainedIn, trained_in

MAX_DEPTH = 8
"""Largest number of orchestrators above a sub-agent that are followed."""


async def read_trace(
    log: LogReader, trajectory_id: str, progress: SearchProgress, event: EventFound | None = None, *, depth: int = 0
) -> Trace:
    """Read everything in the log about ``trajectory_id``, and about the trajectory that it worked for."""
    trace = Trace(trajectory_id, event)
    trace.steps = await _steps(log, trajectory_id, progress)
    trace.rejections = _readable(
        await find_all(log, REJECTED, trajectory_id, has_subject(trajectory_id), progress), trajectory_id, Rejection
    )
    trace.groups = await _groups(log, trace, progress)
    group_id = _group_id(trace)
    trace.rewards = _readable(
        await find_all(log, REWARDS, group_id, has_subject(trajectory_id), progress), trajectory_id, Reward
    )
    trace.trajectory = await _trajectory(log, trace, progress)
    if isinstance(trace.trajectory, Found):
        record = trace.trajectory.record
        begin = (await log.bounds(EVENTS))[record.first.partition].begin
        trace.events = EventsLeft(record.first.partition, record.first.offset, record.last.offset, begin)
        above = record.started.parent_trajectory_id if record.started else None
        if above and above != trajectory_id and depth < MAX_DEPTH:
            trace.parent = await read_trace(log, above, progress, depth=depth + 1)
    return trace


async def _steps(log: LogReader, trajectory_id: str, progress: SearchProgress) -> list[TrainedIn]:
    found = []
    records = await find_all(log, STEPS, None, mentions(trajectory_id), progress)
    for step in _readable(records, trajectory_id, Step):
        graph = await read_graph(log, step.record.run)
        if (trained := trained_in(step, trajectory_id, graph)) is not None:
            found.append(trained)
    return found


async def _groups(log: LogReader, trace: Trace, progress: SearchProgress) -> list[Found[TrainingGroup] | MissingRecord]:
    """Read the trajectory's groups: at the places that its steps name, else by a scan."""
    places = {
        place_of(group.group): group.group_id
        for trained in trace.steps
        for group in trained.step.record.groups
        if group.group_id == trained.group_id
    }
    if places:
        records, missing = await log.read_at(TRAINING, places)
        return [*(_read(record, places[place], TrainingGroup) for place, record in records.items()), *missing]
    if any(each.record.stage is Stage.GROUP for each in trace.rejections):
        return []  # rejected before there was a group to train
    found = _readable(
        await find_all(log, TRAINING, _group_id(trace), mentions(trace.trajectory_id), progress),
        trace.trajectory_id,
        TrainingGroup,
    )
    return [group for group in found if any(each.trajectory_id == trace.trajectory_id for each in group.record.members)]


async def _trajectory(
    log: LogReader, trace: Trace, progress: SearchProgress
) -> Found[Trajectory] | MissingRecord | None:
    """Read the trajectory's record: at the place that others name, else by a scan; ``None``: not assembled yet."""
    trajectory_id = trace.trajectory_id
    if (reference := _reference(trace)) is not None:
        records, missing = await log.read_at(TRAJECTORIES, {place_of(reference): trajectory_id})
        return _read(records[place_of(reference)], trajectory_id, Trajectory) if records else missing[0]
    record = await find_first(log, TRAJECTORIES, trajectory_id, has_subject(trajectory_id), progress)
    if record is not None:
        return _read(record, trajectory_id, Trajectory)
    return await _perhaps_expired(log, TRAJECTORIES, trajectory_id)


async def _perhaps_expired(log: LogReader, topic: Topic, trajectory_id: str) -> MissingRecord | None:
    """Returns that a record may have expired; ``None`` if its partition is complete."""
    partition = log.partition_of(topic, trajectory_id)
    begin = (await log.bounds(topic))[partition].begin
    if not begin:
        return None
    detail = f"{topic.name} {partition} begins at {begin}: if the record existed, it has expired"
    return MissingRecord(topic.name, partition, -1, trajectory_id, Absence.EXPIRED, detail)


def _reference(trace: Trace) -> Reference | None:
    """Returns the place of the trajectory's record, from the first record that names it."""
    for trained in trace.steps:
        for group in trained.step.record.groups:
            if trace.trajectory_id in group.trajectory_ids:
                return group.trajectories[group.trajectory_ids.index(trace.trajectory_id)]
    if trace.member is not None:
        return trace.member.trajectory
    places = [
        *(each.record.trajectory for each in trace.rejections),
        *(each.record.trajectory for each in trace.rewards),
    ]
    return places[0] if places else None


def _group_id(trace: Trace) -> str | None:
    places = [
        *(each.group_id for each in trace.steps),
        *(each.record.group_id for each in trace.rejections),
        *(each.record.group_id for each in trace.groups if isinstance(each, Found)),
    ]
    return next((each for each in places if each), None)


def _readable(records: list[KafkaRecord], subject: str, model: type[R]) -> list[Found[R]]:
    read = (_read(record, subject, model) for record in records)
    return [each for each in read if isinstance(each, Found)]


def _read(record: KafkaRecord, subject: str, model: type[R]) -> Found[R] | MissingRecord:
    payload = read_as(record, subject, model)
    return payload if isinstance(payload, MissingRecord) else Found((record.partition, record.offset), payload)
