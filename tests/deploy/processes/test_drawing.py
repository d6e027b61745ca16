"""The drawing follows from what processors, processes and agents declare, and is the one in the README."""

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from headrace.deploy.commands.topology import command
from headrace.deploy.processes.drawing import Node, mermaid, nodes
from headrace.deploy.processes.process import Flow
from headrace.deploy.processes.registry import PROCESSES
from headrace.schemas.topics import ALERTS, APPLIED, TOPICS
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor
from headrace.streams.topology import TOPOLOGY, describe

README = Path(__file__).parents[3] / "README.md"


def test_every_topic_has_a_reader_and_a_writer() -> None:
    everybody: list[Processor[Rules] | Node] = [*TOPOLOGY, *nodes()]
    assert {topic for part in everybody for topic in part.reads} == set(TOPICS)
    written = {topic.name for part in everybody for topic in part.writes}
    assert {topic.name for topic in TOPICS} == written


def test_the_flowchart_is_a_closed_loop() -> None:
    arrows = [line.strip().split(" ") for line in mermaid().splitlines() if "-->" in line]
    after: dict[str, set[str]] = {}
    for source, *_, target in arrows:
        after.setdefault(source, set()).add(target)
    reached, frontier = set[str](), {"events"}
    while frontier:
        reached |= frontier
        frontier = set().union(*(after.get(node, set()) for node in frontier)) - reached
    assert {"assemble", "score", "group", "trainer", "weights", "follower", "vllm", "agents", "events"} <= reached


def test_an_added_process_is_in_the_flowchart() -> None:
    monitor = replace(PROCESSES[-1], name="drift", flow=lambda: Flow((APPLIED,), (ALERTS,)), feeds=())
    drawn = mermaid(around=nodes([*PROCESSES, monitor]))
    assert "  drift(drift)\n" in drawn
    assert "  applied --> drift\n  drift --> alerts\n" in drawn


def test_the_command_prints_text_or_a_flowchart() -> None:
    assert CliRunner().invoke(command).output == describe()
    assert CliRunner().invoke(command, ["--mermaid"]).output == mermaid()


def test_the_readme_has_the_current_flowchart() -> None:
    assert f"```mermaid\n{mermaid()}```" in README.read_text(), "paste `headrace topology --mermaid` into the README"
