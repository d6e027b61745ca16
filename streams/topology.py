"""The dataflow on one screen: which processor reads which topics, what it runs, and which topics it writes.

``headrace topology`` prints it. The workers, ``drive`` and a replay run these values (``streams/runtime``), and none of
them writes to other topics but ``dead-letters``, where everything goes that cannot be read, and ``alerts``, about a
record that our own code raised for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from headrace.schemas.events import FeedbackGiven
from headrace.schemas.model import Record
from headrace.schemas.topics import (
    ALERTS,
    APPLIED,
    BUDGET,
    DEAD_LETTERS,
    EVENTS,
    FEEDBACK,
    REJECTED,
    REWARDS,
    SDK_STATS,
    STEPS,
    TOPICS,
    TRAINING,
    TRAJECTORIES,
    WEIGHTS,
    Topic,
)
from headrace.streams.assembly.assemble import assemble
from headrace.streams.grouping.group import group
from headrace.streams.processors.assemble import restore_assemble
from headrace.streams.processors.decider import decide_due
from headrace.streams.processors.function import restore_function
from headrace.streams.processors.group import restore_group
from headrace.streams.processors.score import restore_score
from headrace.streams.rewards.spec import Feedback
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor
from headrace.streams.scoring.score import score
from headrace.streams.scoring.score_intake import hears_feedback


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A part of the circle outside the streams: who fills the first topic, who reads the last."""

    name: str
    """Name in the drawing."""
    reads: tuple[Topic, ...] = ()
    """Topics it reads."""
    writes: tuple[Topic, ...] = ()
    """Topics it writes."""
    feeds: tuple[tuple[str, str], ...] = ()
    """What it does to other parts without a topic: (part, what)."""


Topology: TypeAlias = tuple[Processor[Rules], ...]

READ_FROM: Mapping[type, type[Record]] = {Feedback: FeedbackGiven}
"""Working types in the functions' annotations, and the record that each is read from."""

TOPOLOGY: Topology = (
    Processor(
        "assemble",
        reads=(EVENTS,),
        run=assemble,
        writes=(TRAJECTORIES,),
        about="The events of a trajectory become one record: tokens, turns, tools, and labels for what is wrong.",
        restore=restore_assemble,
    ),
    Processor(
        "score",
        reads=(TRAJECTORIES, FEEDBACK),
        run=score,
        writes=(REWARDS,),
        about="Every trajectory gets a reward by the spec of its agent, with its feedback, or the reason for none.",
        restore=restore_score,
        state="Trajectories that wait for feedback, and memories of scored ones.",
        hook=decide_due,
        hears=lambda rules: (TRAJECTORIES, FEEDBACK) if hears_feedback(rules.rewards) else (TRAJECTORIES,),
    ),
    Processor(
        "group",
        reads=(REWARDS,),
        run=group,
        writes=(TRAINING, REJECTED),
        about="Rewards of one prompt become a training group; what carries no gradient is rejected with a reason.",
        restore=restore_group,
        state="Open groups, and memories of closed ones.",
    ),
)

NEIGHBOURS: tuple[Neighbour, ...] = (
    Neighbour("agents", reads=(BUDGET, STEPS, REJECTED), writes=(EVENTS, FEEDBACK, SDK_STATS)),
    Neighbour("trainer", reads=(TRAINING, TRAJECTORIES), writes=(STEPS, WEIGHTS, BUDGET, REJECTED, ALERTS)),
    Neighbour("follower", reads=(WEIGHTS,), writes=(APPLIED, ALERTS), feeds=(("vLLM", "swaps weights"),)),
    Neighbour("vLLM", feeds=(("agents", "samples tokens"),)),
    Neighbour("sink", reads=TOPICS, writes=(DEAD_LETTERS,), feeds=(("ClickHouse", "inserts"),)),
    Neighbour("ClickHouse", feeds=(("dashboard", "answers"),)),
    Neighbour("dashboard"),
)


def with_run(topology: Topology, name: str, run: Callable[..., Any]) -> Topology:
    """``topology`` with another function for ``score``: how a reward is tried out with ``drive``. It sees no feedback.

    Raises ``KeyError`` where no processor has that name, ``ValueError`` where it keeps state of its own.
    """
    if name not in {processor.name for processor in topology}:
        raise KeyError(f"no processor {name!r}: they are {', '.join(processor.name for processor in topology)}")
    if name != "score":
        raise ValueError(f"processor {name!r} cannot run {run}: only score's function can be replaced")
    return tuple(
        replace(processor, run=run, restore=partial(restore_function, run), hook=None, hears=None)
        if processor.name == name
        else processor
        for processor in topology
    )


def describe(topology: Topology = TOPOLOGY) -> str:
    """The topology as text, a processor a paragraph."""
    paragraphs = [
        f"{processor.name}\n"
        f"  {_names(processor.reads)} → {_names(processor.writes)}\n"
        f"  {processor.run.__module__}.{processor.run.__qualname__}\n"
        f"  {processor.about}\n"
        for processor in topology
    ]
    return "\n".join(
        [
            *paragraphs,
            f"Unreadable records go to {DEAD_LETTERS.name}; faults of processors are reported in {ALERTS.name}.\n",
        ]
    )


def mermaid(topology: Topology = TOPOLOGY, neighbours: Sequence[Neighbour] = NEIGHBOURS) -> str:
    """The whole circle as a Mermaid flowchart: boxes are parts, barrels are topics; bold boxes are ``topology``."""
    lines = ["flowchart LR"]
    lines += [f"  {_id(topic.name)}[({topic.name})]" for topic in TOPICS]
    lines += [f"  {_id(processor.name)}[{processor.name}]:::stream" for processor in topology]
    lines += [f"  {_id(neighbour.name)}({neighbour.name})" for neighbour in neighbours]
    for processor in topology:
        lines += _edges(processor.name, processor.reads, processor.writes)
        lines.append(f"  {_id(processor.name)} -. unreadable .-> {_id(DEAD_LETTERS.name)}")
        lines.append(f"  {_id(processor.name)} -. raised .-> {_id(ALERTS.name)}")
    for neighbour in neighbours:
        # A part that reads every topic has one arrow: a dozen would hide the circle.
        if len(neighbour.reads) == len(TOPICS):
            lines.append(f'  every_topic["every topic"] -.-> {_id(neighbour.name)}')
            lines += _edges(neighbour.name, (), neighbour.writes)
        else:
            lines += _edges(neighbour.name, neighbour.reads, neighbour.writes)
        lines += [f"  {_id(neighbour.name)} -- {what} --> {_id(part)}" for part, what in neighbour.feeds]
    lines.append("  classDef stream stroke-width:3px")
    return "\n".join(lines) + "\n"


def _edges(part: str, reads: Iterable[Topic], writes: Iterable[Topic]) -> list[str]:
    return [
        *(f"  {_id(topic.name)} --> {_id(part)}" for topic in reads),
        *(f"  {_id(part)} --> {_id(topic.name)}" for topic in writes),
    ]


def _names(topics: Iterable[Topic]) -> str:
    return ", ".join(topic.name for topic in topics)


def _id(name: str) -> str:
    return name.replace("-", "_")
