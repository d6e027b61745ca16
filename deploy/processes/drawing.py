"""The whole circle as a Mermaid flowchart: processors, topics, and the processes around them.

Everything in it is declared where it is done: a processor's topics in the topology, a process's in its value, those of
agents in the SDK.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.agents.backpressure import READS
from headrace.deploy.processes.process import Process
from headrace.deploy.processes.registry import PROCESSES
from headrace.deploy.processes.streams import STREAM_PROCESSES
from headrace.schemas.asyncapi import FROM_AGENTS
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, TOPICS, Topic
from headrace.streams.topology import TOPOLOGY, Topology


@dataclass(frozen=True, slots=True)
class Part:
    """A box of the drawing."""

    name: str
    """Name of the process, or ``agents``."""
    reads: tuple[Topic, ...] = ()
    """Topics it reads."""
    writes: tuple[Topic, ...] = ()
    """Topics it writes."""
    feeds: tuple[tuple[str, str], ...] = ()
    """What it does to other parts without a topic: (part, what)."""


AGENTS = Part("agents", READS, FROM_AGENTS)
"""The SDK and the samplers of rollouts."""


def parts(processes: Iterable[Process] = PROCESSES) -> list[Part]:
    """Agents, and the processes of a stack around the topology that have a topic, or something to do with others."""
    found = [AGENTS]
    for process in processes:
        if process.in_stack and process not in STREAM_PROCESSES:
            flow = process.flow()
            found.append(Part(process.name, flow.reads, flow.writes, process.feeds))
    fed = {name for part in found for name, _ in part.feeds}
    return [part for part in found if part.reads or part.writes or part.feeds or part.name in fed]


def mermaid(topology: Topology = TOPOLOGY, around: Sequence[Part] | None = None) -> str:
    """The flowchart: barrels are topics, boxes are parts, those with thick borders the processors of ``topology``.

    ``around`` are the other parts; by default those of :func:`parts`.
    """
    around = parts() if around is None else around
    lines = ["flowchart LR"]
    lines += [f"  {_id(topic.name)}[({topic.name})]" for topic in TOPICS]
    lines += [f"  {_id(processor.name)}[{processor.name}]:::stream" for processor in topology]
    lines += [f"  {_id(part.name)}({part.name})" for part in around]
    for processor in topology:
        lines += _edges(processor.name, processor.reads, processor.writes)
        lines.append(f"  {_id(processor.name)} -. unreadable .-> {_id(DEAD_LETTERS.name)}")
        lines.append(f"  {_id(processor.name)} -. raised .-> {_id(ALERTS.name)}")
    for part in around:
        # A part that reads most topics has one arrow: a dozen would hide the circle.
        if len(part.reads) > len(TOPICS) // 2:
            every = set(part.reads) >= set(TOPICS)
            text = "every topic" if every else ", ".join(topic.name for topic in part.reads)
            lines.append(f'  read_by_{_id(part.name)}["{text}"] -.-> {_id(part.name)}')
            lines += _edges(part.name, (), part.writes)
        else:
            lines += _edges(part.name, part.reads, part.writes)
        lines += [f"  {_id(part.name)} -- {what} --> {_id(other)}" for other, what in part.feeds]
    lines.append("  classDef stream stroke-width:3px")
    return "\n".join(lines) + "\n"


def _edges(part: str, reads: Iterable[Topic], writes: Iterable[Topic]) -> list[str]:
    return [
        *(f"  {_id(topic.name)} --> {_id(part)}" for topic in reads),
        *(f"  {_id(part)} --> {_id(topic.name)}" for topic in writes),
    ]


def _id(name: str) -> str:
    return name.replace("-", "_")
