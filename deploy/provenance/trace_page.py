"""Formats the trace of a trajectory as text for a terminal, and as JSON."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.deploy.tail.sentence import sentence
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, Topic
from headrace.trainer.provenance.evidence import Found, MissingRecord
from headrace.trainer.provenance.find import EventSearch
from headrace.trainer.provenance.trace import EventFound, Trace, TrainedIn, TrajectoryFate
from headrace.trainer.provenance.versions import spans

_FATES = {
    TrajectoryFate.TRAINED: "trained",
    TrajectoryFate.REJECTED: "rejected",
    TrajectoryFate.UNTRAINED: "pending: its group waits for a step",
    TrajectoryFate.UNGROUPED: "pending: it waits for its group",
    TrajectoryFate.UNSCORED: "pending: it waits for a reward",
    TrajectoryFate.OPEN: "pending: it is not assembled yet",
    TrajectoryFate.UNKNOWN: "not in the log",
}


def page(trace: Trace) -> list[str]:
    """Returns a line per record with its position and its content, or the reason why it is missing."""
    lines = [f"Trajectory {trace.trajectory_id}: {fate(trace)}"]
    if trace.event is not None:
        lines.append(_row("event", _at("events", trace.event.place), event_sentence(trace.event)))
    if trace.events is not None:
        events = trace.events
        place = f"events {events.partition}:{events.first}–{events.last}"
        gone = "" if events.state == "there" else f": the partition begins at {events.begin}"
        lines.append(_row("events", place, f"{events.state}{gone}"))
    if isinstance(trace.trajectory, Found):
        lines.append(_row("trajectory", _at(TRAJECTORIES.name, trace.trajectory.place), about(trace.trajectory.record)))
    elif trace.trajectory is not None:
        lines.append(_lost("trajectory", TRAJECTORIES, trace.trajectory))
    lines += [_row("reward", _at(REWARDS.name, each.place), sentence(each.record, _whole)) for each in trace.rewards]
    for group in trace.groups:
        if isinstance(group, Found):
            lines.append(_row("group", _at(TRAINING.name, group.place), _membership(trace, group.record.group_id)))
        else:
            lines.append(_lost("group", TRAINING, group))
    for rejection in trace.rejections:
        record = rejection.record
        text = f"{record.stage.value}: {record.reason.value}"
        lines.append(_row("rejected", _at(REJECTED.name, rejection.place), text))
    for trained in trace.steps:
        lines.append(_row("step", _at(STEPS.name, trained.step.place), _step(trained)))
        lines.append(_row("versions", "", _versions(trained)))
    if trace.parent is not None:
        lines += ["", _relation(trace), *page(trace.parent)]
    return lines


def _relation(trace: Trace) -> str:
    """Returns what a trajectory is to its parent."""
    started = trace.trajectory.record.started if isinstance(trace.trajectory, Found) else None
    if started is None or started.fork_turn is None:
        return "It worked for another trajectory, in which its answer is an observation:"
    return f"It continues another trajectory after its model call {started.fork_turn}:"


def fate(trace: Trace) -> str:
    """Returns the fate of the trajectory in words."""
    words = _FATES[trace.fate]
    if trace.fate is TrajectoryFate.TRAINED:
        runs = {each.step.record.run for each in trace.steps}
        words += f" in run {', '.join(sorted(runs))}; in the weights of versions {spans(trace.touched)}"
    if trace.fate is TrajectoryFate.REJECTED:
        words += f": {trace.rejections[0].record.reason.value}"
    if trace.event is not None and trace.event.dead is not None:
        words += f"; the event is a dead letter ({trace.event.dead.value}) and not part of the trajectory"
    return words


def about(record: Trajectory) -> str:
    """Returns a trajectory as one line."""
    started = record.started
    details = [
        started and f"run {started.run}",
        started and f"task {started.task_id}",
        started and f"agent {started.agent}",
        started and started.tenant and f"tenant {started.tenant}",
        record.status and record.status.value,
        f"{len(record.turns)} turns",
        f"{record.sampled_tokens:,} tokens",
        record.versions and f"sampled by version {spans(record.versions)}",
        record.defects and f"labelled {', '.join(each.value for each in record.defects)}",
    ]
    return ", ".join(each for each in details if each)


def event_sentence(event: EventFound) -> str:
    """Returns an event as one line."""
    time = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    number = "" if event.sequence is None else f" number {event.sequence}"
    dead = "" if event.dead is None else f"; a dead letter ({event.dead.value})"
    name = event.type.removeprefix("headrace.").rpartition(".")[0]
    return f"{name}{number}, {time:%Y-%m-%d %H:%M:%S} UTC{dead}"


def as_json(trace: Trace) -> dict[str, Any]:
    """Returns the same content as JSON data, with positions and payloads, but without the trajectory's tokens."""
    return {
        "trajectory_id": trace.trajectory_id,
        "fate": trace.fate.value,
        "touched": trace.touched,
        "event": trace.event and asdict(trace.event),
        "events": trace.events and asdict(trace.events) | {"state": trace.events.state},
        "trajectory": trace.trajectory and _link(trace.trajectory),
        "rewards": [_link(each) for each in trace.rewards],
        "groups": [_link(each) for each in trace.groups],
        "rejections": [_link(each) for each in trace.rejections],
        "steps": [
            {
                "place": list(each.step.place),
                "run": each.step.record.run,
                "step": each.step.record.step,
                "version": each.version,
                "group_id": each.group_id,
                "data_sha256": each.step.record.data_sha256,
                "descendants": list(each.descendants),
            }
            for each in trace.steps
        ],
        "parent": trace.parent and as_json(trace.parent),
    }


def _link(link: "Found[Any] | MissingRecord") -> dict[str, Any]:
    if isinstance(link, MissingRecord):
        return {"missing": asdict(link)}
    tokens = {"segments", "turns"} if isinstance(link.record, Trajectory) else None
    return {"place": list(link.place), "record": link.record.model_dump(mode="json", exclude=tokens)}


def _membership(trace: Trace, group_id: str) -> str:
    member = trace.member
    if member is None:
        return f"{group_id}, which does not contain it"
    return f"{group_id}, reward {member.reward:g}, advantage {member.advantage:+g}, {member.sampled_tokens:,} tokens"


def _step(trained: TrainedIn) -> str:
    step = trained.step.record
    members = sum(len(group.trajectory_ids) for group in step.groups)
    return f"step {step.step} of run {step.run}: {len(step.groups):,} groups, {members:,} trajectories"


def _versions(trained: TrainedIn) -> str:
    if not trained.descendants:
        return f"{trained.version}, which has no descendants yet"
    return f"{trained.version}, and its descendants {spans(trained.descendants)}"


def _lost(label: str, topic: Topic, missing: MissingRecord) -> str:
    place = f"{topic.name} {missing.partition}" + ("" if missing.offset < 0 else f":{missing.offset}")
    return _row(label, place, f"MISSING: {missing.detail}")


def _at(topic: str, place: tuple[int, int]) -> str:
    return f"{topic} {place[0]}:{place[1]}"


def _row(label: str, place: str, text: str) -> str:
    return f"  {label:<12}{place:<24}{text}"


def _whole(name: str) -> str:
    return name


def not_found(event_id: str, search: EventSearch) -> str:
    """Returns a message that the event is not in the log, and whether it may have expired."""
    made = ""
    if search.time_ms is not None:
        made = f" Its id was created at {datetime.fromtimestamp(search.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC."
    if not search.is_cut:
        return f"There is no event {event_id} in events, and no records of events have expired.{made}"
    begins = ", ".join(f"{partition}:{each.begin}" for partition, each in search.bounds.items() if each.begin)
    return (
        f"There is no event {event_id} in events.{made} The first offsets of the topic are {begins}: the event may "
        "have expired. --trajectory ID shows the fate of its trajectory, because steps and rejections are kept forever."
    )
