"""A Mermaid flowchart of the whole system: stream processors, topics, and the other processes.

It is derived from declarations: the topology has the topics of a processor, ``Process`` values those of a process, and
the SDK those of agents.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.agents.rollouts.sampler import READS
from headrace.deploy.processes.process import Process
from headrace.deploy.processes.registry import PROCESSES
from headrace.deploy.processes.streams import STREAM_PROCESSES
from headrace.schemas.asyncapi import FROM_AGENTS
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, TOPICS, Topic
from headrace.streams.topology import TOPOLOGY, Topology


@dataclass(frozen=True, slots=True)
class Node:
    """A process, or the agents, in the flowchart."""

    name: str
    """Name of the process, or ``agents``."""
    reads: tuple[Topic, ...] = ()
    """Topics it reads."""
    writes: tuple[Topic, ...] = ()
    """Topics it writes."""
    feeds: tuple[tuple[str, str], ...] = ()
    """Connections to other nodes without a topic: (node, label)."""


AGENTS = Node("agents", READS, FROM_AGENTS, (("otlp", "spans"),))
"""The SDK and the rollout samplers."""


def nodes(processes: Iterable[Process] = PROCESSES) -> list[Node]:
    """Returns the agents, and the processes outside the topology that have a topic or another connection."""
    found = [AGENTS]
    for process in processes:
        if process not in STREAM_PROCESSES:
            flow = process.flow()
            found.append(Node(process.name, flow.reads, flow.writes, process.feeds))
    fed = {name for node in found for name, _ in node.feeds}
    return [node for node in found if node.reads or node.writes or node.feeds or node.name in fed]


def mermaid(topology: Topology = TOPOLOGY, around: Sequence[Node] | None = None) -> str:
    """Returns the flowchart: barrels are topics, boxes are nodes, boxes with thick borders processors of ``topology``.

    ``around`` are the other nodes; by default those of :func:`nodes`.
    """
    around = nodes() if around is None else around
    lines = ["flowchart LR"]
    lines += [f"  {_id(topic.name)}[({topic.name})]" for topic in TOPICS]
    lines += [f"  {_id(processor.name)}[{processor.name}]:::stream" for processor in topology]
    lines += [f"  {_id(node.name)}({node.name})" for node in around]
    for processor in topology:
        lines += _edges(processor.name, processor.reads, processor.writes)
        lines += [f"  {_id(processor.name)} -. ticks .-> {_id(topic.name)}" for topic in processor.ticks]
        lines.append(f"  {_id(processor.name)} -. unreadable .-> {_id(DEAD_LETTERS.name)}")
        lines.append(f"  {_id(processor.name)} -. raised .-> {_id(ALERTS.name)}")
    for node in around:
        # A node that reads most topics gets one arrow: a dozen arrows would hide the rest.
        if len(node.reads) >= len(TOPICS) // 2:
            lines.append(f'  read_by_{_id(node.name)}["{_most(node.reads)}"] -.-> {_id(node.name)}')
            lines += _edges(node.name, (), node.writes)
        else:
            lines += _edges(node.name, node.reads, node.writes)
        lines += [f"  {_id(node.name)} -- {label} --> {_id(other)}" for other, label in node.feeds]
    lines.append("  classDef stream stroke-width:3px")
    return "\n".join(lines) + "\n"


def _most(read: Iterable[Topic]) -> str:
    """The label for ``read``, most of the topics."""
    names, others = [topic.name for topic in read], [topic.name for topic in TOPICS if topic not in read]
    if len(others) > 2:
        return ", ".join(names)
    return " but ".join(["every topic", *([" and ".join(others)] if others else [])])


def _edges(node: str, reads: Iterable[Topic], writes: Iterable[Topic]) -> list[str]:
    return [
        *(f"  {_id(topic.name)} --> {_id(node)}" for topic in reads),
        *(f"  {_id(node)} --> {_id(topic.name)}" for topic in writes),
    ]


def _id(name: str) -> str:
    return name.replace("-", "_")
