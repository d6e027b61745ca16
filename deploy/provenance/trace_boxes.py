"""The trace of a trajectory as a row of boxes, one per record: the content of the picture, as plain values."""

from dataclasses import dataclass
from textwrap import wrap

from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.provenance.evidence import Found, MissingRecord
from headrace.trainer.provenance.trace import EventFound, Trace, TrajectoryFate
from headrace.trainer.provenance.versions import spans

WIDTH = 25
"""Characters per line."""
LINES = 5
"""Most lines of a box."""


@dataclass(frozen=True, slots=True)
class Box:
    """A record on the path of a trajectory."""

    title: str
    """The kind of record."""
    place: str
    """Its topic, partition and offset."""
    lines: tuple[str, ...]
    """Its content, short enough to be drawn."""
    is_missing: bool = False
    """Whether the record is missing."""
    is_bad: bool = False
    """Whether the path ends here, or the record is missing."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The path of one trajectory."""

    heading: str
    """Its relation to the trajectory above; empty for the first."""
    boxes: tuple[Box, ...]
    """Its records."""


def rows(trace: Trace, heading: str = "") -> list[TraceRow]:
    """Returns a row for the trajectory, and one for each of its ancestors (the agents that called it)."""
    ancestors = []
    if trace.parent is not None:
        ancestors = rows(trace.parent, f"its answer is an observation of {trace.parent.trajectory_id}")
    return [TraceRow(heading, tuple(_boxes(trace))), *ancestors]


def _boxes(trace: Trace) -> list[Box]:
    boxes = [] if trace.event is None else [_event(trace.event)]
    if isinstance(trace.trajectory, Found):
        boxes.append(_trajectory(trace.trajectory.place, trace.trajectory.record))
    elif trace.trajectory is not None:
        boxes.append(_missing("trajectory", trace.trajectory))
    for reward in trace.rewards[-1:]:
        record = reward.record
        more = f"and {len(trace.rewards) - 1} earlier or of other specs" if len(trace.rewards) > 1 else ""
        total = "no total" if record.total is None else f"{record.total:g}"
        parts = [f"{name} {each.value:g} × {each.weight:g}" for name, each in record.components.items()]
        boxes.append(_box("reward", _at("rewards", reward.place), f"{record.spec}: {total}", *parts, more))
    for group in trace.groups[:1]:
        if isinstance(group, MissingRecord):
            boxes.append(_missing("group", group))
            continue
        member = trace.member
        details = [] if member is None else [f"reward {member.reward:g}", f"advantage {member.advantage:+g}"]
        of = f"{len(group.record.members)} to train of {group.record.scored} scored"
        boxes.append(_box("group", _at("training", group.place), group.record.group_id, of, *details))
    boxes += [
        _box(
            "rejected", _at("rejected", each.place), each.record.stage.value, each.record.reason.value, is_bad=True
        )
        for each in trace.rejections[:1]
    ]  # fmt: skip
    for trained in trace.steps[:1]:
        step = trained.step.record
        groups = f"{len(step.groups)} groups"
        boxes.append(_box("step", _at("steps", trained.step.place), f"step {step.step} of {step.run}", groups))
        later = f"then {spans(trained.descendants)}" if trained.descendants else "no descendants yet"
        boxes.append(_box("versions", f"in {1 + len(trained.descendants)} versions", f"{trained.version}", later))
    if trace.fate not in (TrajectoryFate.TRAINED, TrajectoryFate.REJECTED):
        boxes.append(_box("pending", "", trace.fate.value))
    return boxes


def _event(event: EventFound) -> Box:
    name = event.type.removeprefix("headrace.").rpartition(".")[0]
    number = "" if event.sequence is None else f"number {event.sequence}"
    dead = "" if event.dead is None else f"dead letter: {event.dead.value}"
    return _box("event", _at("events", event.place), name, number, dead, is_bad=event.dead is not None)


def _trajectory(place: tuple[int, int], record: Trajectory) -> Box:
    started = record.started
    details = [] if started is None else [f"task {started.task_id}", f"agent {started.agent}"]
    details += [f"tenant {started.tenant}"] if started and started.tenant else []
    return _box("trajectory", _at("trajectories", place), *details, f"{record.sampled_tokens:,} tokens sampled")


def _missing(title: str, missing: MissingRecord) -> Box:
    place = f"{missing.topic} {missing.partition}" + ("" if missing.offset < 0 else f":{missing.offset}")
    return _box(title, place, f"missing: {missing.absence.value}", missing.detail, is_missing=True, is_bad=True)


def _box(title: str, place: str, *texts: str, is_missing: bool = False, is_bad: bool = False) -> Box:
    lines = [line for text in texts if text for line in wrap(text, WIDTH)]
    shown = lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"]
    return Box(title, place, tuple(shown), is_missing, is_bad)


def _at(topic: str, place: tuple[int, int]) -> str:
    return f"{topic} {place[0]}:{place[1]}"
