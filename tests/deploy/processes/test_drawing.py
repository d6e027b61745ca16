"""The drawings on the pages agree with what processors, processes and agents declare."""

import re
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from headrace.deploy.commands.topology import command
from headrace.deploy.processes.drawing import Node, mermaid, nodes
from headrace.deploy.processes.process import Flow
from headrace.deploy.processes.registry import PROCESSES
from headrace.schemas.topics import ALERTS, APPLIED, TOPICS, topic_named
from headrace.streams.clickhouse.tables import STORED_TOPICS
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor
from headrace.streams.topology import TOPOLOGY, describe

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "streams" / "README.md"
CIRCLE = ROOT / "deploy" / "pictures" / "circle.svg"


def test_every_topic_has_a_writer_and_all_but_results_a_reader() -> None:
    everybody: list[Processor[Rules] | Node] = [*TOPOLOGY, *nodes()]
    results = {topic for processor in TOPOLOGY for topic in processor.writes}
    read = {topic for part in everybody for topic in part.reads}
    assert set(TOPICS) - results <= read <= set(TOPICS)
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


def test_the_page_has_the_current_flowchart() -> None:
    assert f"```mermaid\n{mermaid()}```" in PAGE.read_text(), f"paste `headrace topology --mermaid` into {PAGE}"


def test_every_arrow_of_the_readmes_picture_is_declared() -> None:
    around = {node.name: node for node in nodes()}
    declared: dict[str, Processor[Rules] | Node] = {processor.name: processor for processor in TOPOLOGY} | around
    arrows = re.findall(r'data-from="(\w+)" data-to="(\w+)" data-(topic|does)="([^"]+)"', CIRCLE.read_text())
    assert len(arrows) == 12
    for source, target, kind, label in arrows:
        if kind == "topic":
            topic = topic_named(label)
            assert topic in declared[source].writes, f"{source} does not write {label}"
            assert topic in declared[target].reads, f"{target} does not read {label}"
        else:
            assert (target, label) in around[source].feeds
    assert set(around["sink"].reads) == set(STORED_TOPICS)
    drawn = set(re.findall(r'data-part="(\w+)"', CIRCLE.read_text()))
    assert {"assemble", "score", "group"} <= drawn
    assert around.keys() - drawn == {"archive", "notify", "otlp", "traces"}
