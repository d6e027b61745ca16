"""The trace of a trajectory as boxes in a row, each a link of its way: what the picture draws. Values only."""

from dataclasses import dataclass
from textwrap import wrap

from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.provenance.evidence import Found, MissingRecord
from headrace.trainer.provenance.trace import EventFound, Trace, TrajectoryFate
from headrace.trainer.provenance.versions import spans

WIDTH = 25
"""Characters of a line."""
LINES = 5
"""Lines of a box."""


@dataclass(frozen=True, slots=True)
class Box:
    """A link."""

    title: str
    """What it is."""
    place: str
    """Where it stands."""
    lines: tuple[str, ...]
    """What it says, short enough to be drawn."""
    is_missing: bool = False
    """Whether its record is gone."""
    is_bad: bool = False
    """Whether the way ends here, or the record is gone."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The way of one trajectory."""

    heading: str
    """What it has to do with the one above; empty for the first."""
    boxes: tuple[Box, ...]
    """Its links."""


def rows(trace: Trace, heading: str = "") -> list[TraceRow]:
    """A row for the trajectory, and one for each that it worked for."""
    above = []
    if trace.parent is not None:
        above = rows(trace.parent, f"what it said was an observation of {trace.parent.trajectory_id}")
    return [TraceRow(heading, tuple(_boxes(trace))), *above]


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
        later = f"then {spans(trained.descendants)}" if trained.descendants else "none was trained from it yet"
        boxes.append(_box("versions", f"{1 + len(trained.descendants)} touched", f"{trained.version}", later))
    if trace.fate not in (TrajectoryFate.TRAINED, TrajectoryFate.REJECTED):
        boxes.append(_box("pending", "", trace.fate.value))
    return boxes


def _event(event: EventFound) -> Box:
    name = event.type.removeprefix("headrace.").rpartition(".")[0]
    number = "" if event.sequence is None else f"number {event.sequence}"
    dead = "" if event.dead is None else f"set aside: {event.dead.value}"
    return _box("event", _at("events", event.place), name, number, dead, is_bad=event.dead is not None)


def _trajectory(place: tuple[int, int], record: Trajectory) -> Box:
    started = record.started
    details = [] if started is None else [f"task {started.task_id}", f"agent {started.agent}"]
    details += [f"tenant {started.tenant}"] if started and started.tenant else []
    return _box("trajectory", _at("trajectories", place), *details, f"{record.sampled_tokens:,} tokens sampled")


def _missing(title: str, missing: MissingRecord) -> Box:
    place = f"{missing.topic} {missing.partition}" + ("" if missing.offset < 0 else f":{missing.offset}")
    return _box(title, place, f"gone: {missing.absence.value}", missing.detail, is_missing=True, is_bad=True)


def _box(title: str, place: str, *texts: str, is_missing: bool = False, is_bad: bool = False) -> Box:
    lines = [line for text in texts if text for line in wrap(text, WIDTH)]
    shown = lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"]
    return Box(title, place, tuple(shown), is_missing, is_bad)


def _at(topic: str, place: tuple[int, int]) -> str:
    return f"{topic} {place[0]}:{place[1]}"
