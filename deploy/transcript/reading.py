"""Reads from the log what is shown beside a trajectory: notes of its turns, feedback, the attempts of its group.

The I/O layer of this package: what is made of the records is in the other modules.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headrace.deploy.transcript.refolded import Note, StoredEvent, refolded
from headrace.deploy.transcript.siblings import Attempt, Group, compared
from headrace.schemas.envelope import SUBJECT, EnvelopeError, from_headers
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.records.group import Member, Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, FEEDBACK, REJECTED, REWARDS, STEPS, TRAJECTORIES, Topic
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.evidence import Found, R, read_as
from headrace.trainer.provenance.find import SearchProgress, find_all, has_subject, mentions
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.trace import Trace


@dataclass(frozen=True, slots=True)
class Beside:
    """What is shown beside a trajectory."""

    notes: Sequence[Note] | None
    """What its turns do not say; ``None`` if some of its events have expired."""
    feedback: Sequence[Found[FeedbackGiven]]
    """Its feedback, in order."""
    group: Group | None
    """The attempts of its group; ``None`` if it is in none."""


async def read_beside(log: LogReader, trace: Trace, progress: SearchProgress) -> Beside:
    """Read what is shown beside the trajectory of ``trace``. Scans `feedback`, and the group's topics."""
    matches = has_subject(trace.trajectory_id)
    feedback = await _read_all(log, FEEDBACK, trace.trajectory_id, matches, FeedbackGiven, progress)
    return Beside(await _notes(log, trace), feedback, await _group(log, trace, progress))


async def read_trajectories(log: LogReader, places: Mapping[Place, str]) -> dict[str, Trajectory]:
    """Returns the trajectories at ``places`` (place → id) that are there and readable, by id."""
    records, _ = await log.read_at(TRAJECTORIES, places)
    read = (read_as(record, places[place], Trajectory) for place, record in records.items())
    return {each.trajectory_id: each for each in read if isinstance(each, Trajectory)}


async def read_members(log: LogReader, group: TrainingGroup) -> Group:
    """Returns the members of a training group with their texts, without their scores and fates."""
    members = sorted(group.members, key=lambda each: (-each.reward, each.trajectory_id))
    shown = {*compared([each.trajectory_id for each in members], None)}
    places = {place_of(each.trajectory): each.trajectory_id for each in members if each.trajectory_id in shown}
    records = await read_trajectories(log, places)
    attempts = [
        Attempt(each.trajectory_id, each.reward, each.advantage, "", record=records.get(each.trajectory_id))
        for each in members
    ]
    return Group(group.group_id, _baseline(group), attempts)


async def _notes(log: LogReader, trace: Trace) -> list[Note] | None:
    left = trace.events
    if left is None or left.state != "there":
        return None
    wanted = trace.trajectory_id.encode()
    events: dict[int, StoredEvent] = {}
    start = {left.partition: left.first}
    async with aclosing(log.scan(EVENTS, start, partitions=(left.partition,))) as records:
        async for record in records:
            if record.offset > left.last:
                break
            if dict(record.headers).get(SUBJECT) == wanted and (event := _event(record)) is not None:
                events.setdefault(event.seq, event)
            if record.offset == left.last:
                break
    found = refolded(trace.trajectory_id, [events[number] for number in sorted(events)])
    return [] if found is None else found.notes


def _event(record: KafkaRecord) -> StoredEvent | None:
    """Returns a record of `events`; ``None`` for one that is no part of a trajectory."""
    try:
        envelope = from_headers(record.headers)
    except EnvelopeError:
        return None
    if envelope.sequence is None or record.value is None:
        return None
    place = (record.partition, record.offset)
    return StoredEvent(envelope.type, envelope.sequence, envelope.time_ms, place, record.value)


async def _read_all(
    log: LogReader,
    topic: Topic,
    key: str | None,
    matches: Callable[[KafkaRecord], bool],
    model: type[R],
    progress: SearchProgress,
) -> list[Found[R]]:
    """Returns the readable records of ``topic`` that satisfy ``matches``: of the partition of ``key``, else of all."""
    return [
        Found((record.partition, record.offset), payload)
        for record in await find_all(log, topic, key, matches, progress)
        if isinstance(payload := read_as(record, "", model), model)
    ]


async def _group(log: LogReader, trace: Trace, progress: SearchProgress) -> Group | None:
    formed = next((each.record for each in trace.groups if isinstance(each, Found)), None)
    group_id = formed.group_id if formed is not None else _group_id(trace)
    if not group_id:
        return None
    members = {each.trajectory_id: each for each in formed.members} if formed else {}
    named, subjects = mentions(group_id), {each.encode() for each in members}

    def is_of_group(record: KafkaRecord) -> bool:
        return dict(record.headers).get(SUBJECT) in subjects or named(record)

    key = (formed.cohort_key if formed else None) or group_id
    scores = await _read_all(log, REWARDS, key, is_of_group, Reward, progress)
    rewards = latest_rewards(
        [each for each in scores if each.record.group_id == group_id or each.record.trajectory_id in members]
    )
    rejections = {
        each.record.trajectory_id: each.record
        for each in await _read_all(log, REJECTED, None, named, Rejection, progress)
        if each.record.group_id == group_id
    }
    steps = [each.step for each in trace.steps]
    if formed is not None and not steps:
        steps = await _read_all(log, STEPS, None, named, Step, progress)
    return await _with_records(log, trace, group_id, formed, members, rewards, rejections, _trained(steps, group_id))


async def _with_records(
    log: LogReader,
    trace: Trace,
    group_id: str,
    formed: TrainingGroup | None,
    members: Mapping[str, Member],
    rewards: Mapping[str, Reward],
    rejections: Mapping[str, Rejection],
    trained: Mapping[str, int],
) -> Group:
    """Returns the group with the trajectories of the attempts that are compared."""
    worth: dict[str, float | None] = {each: rejection.reward for each, rejection in rejections.items()}
    worth |= {each: reward.total for each, reward in rewards.items()}
    worth |= {each: member.reward for each, member in members.items()}
    worth.setdefault(trace.trajectory_id, None)

    def order(id: str) -> tuple[bool, float, str]:
        return worth[id] is None, -(worth[id] or 0.0), id

    ids = sorted(worth, key=order)
    at: dict[str, Reference] = {
        id: named.trajectory for each in (rejections, rewards, members) for id, named in each.items()
    }
    places = {place_of(at[id]): id for id in compared(ids, trace.trajectory_id) if id in at}
    records = await read_trajectories(log, places)
    if isinstance(trace.trajectory, Found):
        records[trace.trajectory_id] = trace.trajectory.record

    def fate(id: str) -> str:
        if id in trained:
            return f"trained at step {trained[id]}"
        if id in rejections:
            return f"rejected: {rejections[id].reason.value}"
        return "waits for a step" if id in members else "waits for its group"

    attempts = [
        Attempt(
            id,
            worth[id],
            members[id].advantage if id in members else None,
            fate(id),
            rewards.get(id),
            records.get(id),
        )
        for id in ids
    ]
    return Group(group_id, _baseline(formed) if formed else "", attempts)


def latest_rewards(scores: Sequence[Found[Reward]]) -> dict[str, Reward]:
    """Returns the reward that holds for each trajectory: the last revision by the spec that scored last."""
    last: dict[tuple[str, str], Found[Reward]] = {}
    for each in scores:
        which = (each.record.trajectory_id, each.record.spec)
        known = last.get(which)
        if known is None or (each.record.revision, each.place) > (known.record.revision, known.place):
            last[which] = each
    return {each.record.trajectory_id: each.record for each in sorted(last.values(), key=lambda each: each.place)}


def _trained(steps: Sequence[Found[Step]], group_id: str) -> dict[str, int]:
    """Returns the step that trained each member of a group."""
    return {
        id: each.record.step
        for each in steps
        for group in each.record.groups
        if group.group_id == group_id
        for id in group.trajectory_ids
    }


def _group_id(trace: Trace) -> str | None:
    started = trace.trajectory.record.started if isinstance(trace.trajectory, Found) else None
    named = [each.record.group_id for each in trace.rejections] + [started.group_id if started else None]
    return next((each for each in named if each), None)


def _baseline(group: TrainingGroup) -> str:
    return f"{group.baseline} {group.baseline_value:g}"
