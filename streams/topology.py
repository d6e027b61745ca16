"""The dataflow: which processor reads which topics, which function it runs, and which topics it writes.

``headrace topology`` prints it and draws it among the other processes. The workers and ``drive`` run these values
(``streams/runtime``). In addition, every processor writes unreadable records to ``dead-letters``, and alerts about
records whose processing raised to ``alerts``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from headrace.schemas.events import FeedbackGiven
from headrace.schemas.model import Record
from headrace.schemas.records.watch import LevelAccepted
from headrace.schemas.topics import (
    ALERTS,
    DEAD_LETTERS,
    EVENTS,
    FEEDBACK,
    MONITORS,
    OBSERVATIONS,
    REJECTED,
    REWARDS,
    STEPS,
    TRAINING,
    TRAJECTORIES,
    Topic,
)
from headrace.streams.assembly.assemble import assemble
from headrace.streams.grouping.group import group
from headrace.streams.processors.assemble import restore_assemble
from headrace.streams.processors.function import restore_function
from headrace.streams.processors.group import restore_group
from headrace.streams.processors.observe import restore_observe
from headrace.streams.processors.score import restore_score
from headrace.streams.processors.score_hook import decide_due
from headrace.streams.processors.watch import restore_watch
from headrace.streams.rewards.spec import Feedback
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor
from headrace.streams.scoring.score import score
from headrace.streams.scoring.score_intake import uses_feedback
from headrace.streams.watch.observe import observe
from headrace.streams.watch.watch import watch

Topology: TypeAlias = tuple[Processor[Rules], ...]

READ_FROM: Mapping[type, type[Record]] = {Feedback: FeedbackGiven}
"""Types in the functions' annotations that are not records → the record from which each is read."""

SENT_BY_COMMANDS: frozenset[type[Record]] = frozenset({LevelAccepted})
"""Records in a topic of a processor that people send, and not the processor that writes the others."""

TOPOLOGY: Topology = (
    Processor(
        "assemble",
        reads=(EVENTS,),
        run=assemble,
        writes=(TRAJECTORIES,),
        about="The events of a trajectory become one record: tokens, turns, tools, and labels for defects.",
        restore=restore_assemble,
        ticks=(EVENTS,),
    ),
    Processor(
        "score",
        reads=(TRAJECTORIES, FEEDBACK),
        run=score,
        writes=(REWARDS,),
        about="Every trajectory gets a reward by the spec of its agent, with its feedback, or the reason for none.",
        restore=restore_score,
        state="Trajectories that wait for feedback, and scored ones that are remembered.",
        hook=decide_due,
        hears=lambda rules: (TRAJECTORIES, FEEDBACK) if uses_feedback(rules.rewards) else (TRAJECTORIES,),
    ),
    Processor(
        "group",
        reads=(REWARDS,),
        run=group,
        writes=(TRAINING, REJECTED),
        about="Rewards of one prompt become a training group; groups without a gradient are rejected with a reason.",
        restore=restore_group,
        state="Open groups, and closed ones that are remembered.",
    ),
    Processor(
        "observe",
        reads=(TRAJECTORIES, REWARDS, REJECTED, FEEDBACK),
        run=observe,
        writes=(OBSERVATIONS,),
        about="Trajectories, rewards, rejections and feedback become numbers and labels for the monitors.",
        restore=restore_observe,
        optional=(FEEDBACK,),
    ),
    Processor(
        "watch",
        reads=(OBSERVATIONS, STEPS),
        run=watch,
        writes=(MONITORS, ALERTS),
        about="Monitors compare windows of trajectories with those before, and raise alerts about drift and hacks.",
        restore=restore_watch,
        state="Baselines and charts by run, agent, task source and reward spec, open windows, trajectories' places.",
        optional=(STEPS,),
    ),
)


def with_run(topology: Topology, name: str, run: Callable[..., Any]) -> Topology:
    """Returns ``topology`` with another function for ``score``, to try a reward with ``drive``. It gets no feedback.

    Raises ``KeyError`` if no processor has that name, and ``ValueError`` for a processor with state.
    """
    if name not in {processor.name for processor in topology}:
        raise KeyError(f"no processor {name!r}: choose from {', '.join(processor.name for processor in topology)}")
    if name != "score":
        raise ValueError(f"processor {name!r} cannot run {run}: only score's function can be replaced")
    return tuple(
        replace(processor, run=run, restore=partial(restore_function, run), hook=None, hears=None)
        if processor.name == name
        else processor
        for processor in topology
    )


def describe(topology: Topology = TOPOLOGY) -> str:
    """Returns the topology as text, one paragraph per processor."""
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


def _names(topics: Iterable[Topic]) -> str:
    return ", ".join(topic.name for topic in topics)
