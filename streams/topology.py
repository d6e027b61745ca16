"""The dataflow on one screen: which pure function reads which topics and writes which. A value, not a program.

``headrace topology`` prints it, ``drive`` runs it in memory, tests hold each function's types against its topics. The
shells (``assembler``, ``workers``) run these functions on Kafka and write to no other topics but ``dead-letters``,
where everything goes that cannot be read, and ``alerts``, about a record that our own code raised for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from headrace.streams.rewards.spec import Feedback
from headrace.streams.scoring.score import score


@dataclass(frozen=True, slots=True)
class Processor:
    """A pure function between topics."""

    name: str
    """Stable name: it is in consumer groups, metrics and the drawing."""
    reads: tuple[Topic, ...]
    """Topics whose records it takes."""
    run: Callable[..., Any]
    """The function. Its annotations name the records of ``reads`` and ``writes``."""
    writes: tuple[Topic, ...]
    """Topics that its results go to."""
    about: str
    """What it does, in a sentence."""


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


Topology = tuple[Processor, ...]

READ_FROM: Mapping[type, type[Record]] = {Feedback: FeedbackGiven}
"""Working types in the functions' annotations, and the record that each is read from."""

TOPOLOGY: Topology = (
    Processor(
        "assemble",
        reads=(EVENTS,),
        run=assemble,
        writes=(TRAJECTORIES,),
        about="The events of a trajectory become one record: tokens, turns, tools, and labels for what is wrong.",
    ),
    Processor(
        "score",
        reads=(TRAJECTORIES, FEEDBACK),
        run=score,
        writes=(REWARDS,),
        about="Every trajectory gets a reward by the spec of its agent, with its feedback, or the reason for none.",
    ),
    Processor(
        "group",
        reads=(REWARDS,),
        run=group,
        writes=(TRAINING, REJECTED),
        about="Rewards of one prompt become a training group; what carries no gradient is rejected with a reason.",
    ),
)

NEIGHBOURS: tuple[Neighbour, ...] = (
    Neighbour("agents", reads=(BUDGET,), writes=(EVENTS, FEEDBACK, SDK_STATS)),
    Neighbour("trainer", reads=(TRAINING, TRAJECTORIES), writes=(STEPS, WEIGHTS, BUDGET, REJECTED)),
    Neighbour("follower", reads=(WEIGHTS,), writes=(APPLIED, ALERTS), feeds=(("vLLM", "swaps weights"),)),
    Neighbour("vLLM", feeds=(("agents", "samples tokens"),)),
    Neighbour("sink", reads=TOPICS, feeds=(("ClickHouse", "inserts"),)),
    Neighbour("ClickHouse", feeds=(("dashboard", "answers"),)),
    Neighbour("dashboard"),
)


def with_run(topology: Topology, name: str, run: Callable[..., Any]) -> Topology:
    """``topology`` with another function for one processor: how a reward is tried out with ``drive``.

    Raises ``KeyError`` where no processor has that name.
    """
    if name not in {processor.name for processor in topology}:
        raise KeyError(f"no processor {name!r}: they are {', '.join(processor.name for processor in topology)}")
    return tuple(replace(processor, run=run) if processor.name == name else processor for processor in topology)


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
            f"What a processor cannot read goes to {DEAD_LETTERS.name}; of what it raised for {ALERTS.name} tells.\n",
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
