"""Times of the dashboard's panels and of the questions of QUESTIONS.md on many events, and the size of the tables.

    python -m tests.benchmarks.bench_tables [--events 1000000] [--repeats 20] [--idle 30] [--clickhouse URL]

20 events per trajectory, groups of eight, versions 0 to 39 over three weeks. Trajectories, rewards, training groups and
rejections are made by the fold: the events go through the topology in memory, and all records through the sink's
conversion and insert. Only steps and feedback are made here, because no trainer and no user runs.

Each query is sent through the HTTP front by the read-only account's way; wall time is the client's, processor time that
of the ClickHouse process. On a machine that does other work, processor time counts. Prints a Markdown table, and then,
for each page that is open while nothing is written, the processor time of the dashboard and of ClickHouse as a share of
a core over --idle seconds.
"""

import argparse
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace.deploy.dashboard.changes import read_versions
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.selection import selection
from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas import events
from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.model import Record
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import encode
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from headrace.streams.clickhouse.tables import TABLES_OF_TOPIC
from headrace.streams.drive import drive
from headrace.streams.raw import StoredRecord
from headrace.streams.topology import TOPOLOGY, with_run
from tests.benchmarks.bench_sink import clickhouse
from tests.benchmarks.cluster import cpu_s

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RUN = "r1"
GROUP = 8
VERSIONS = 40
DAYS = 20
CHUNK = 64
"""Groups that are folded together: 10,240 events."""
QUESTIONS = Path(__file__).parents[2] / "deploy" / "clickhouse" / "QUESTIONS.md"


def attempt(
    group: int, member: int, version: int, time_ms: int, rng: random.Random
) -> Iterator[tuple[Envelope, Record]]:
    """The events of one attempt: a start, six model calls with tool calls and results, an end."""
    name = uuid7(time_ms, rng.randbytes(10))
    source, hops = ("wide", "deep")[group % 2], 1 + group % 4
    skill = 0.2 + 0.6 * version / VERSIONS - 0.1 * hops
    recall = min(max(round(rng.gauss(skill, 0.2), 2), 0), 1) if skill > 0.1 else 0.0
    context = array("i")
    task = {"source": source, "hops": hops}
    facts: list[Record] = [
        events.TrajectoryStarted(
            task_id=f"task-{group % 1000}", group_id=f"g{group}", group_size=GROUP, agent="shop", run=RUN,
            tenant=f"tenant-{group % 5}", task=task,
        )
    ]  # fmt: skip
    for number in range(6):
        fresh, sampled = array("i", range(24)), array("i", range(8 + rng.randrange(24)))
        prefix = {"prefix_length": len(context), "prefix_sha256": prefix_hash(context)} if context else {}
        said = [
            {"role": "user", "content": f"question {number} " * 5},
            {"role": "assistant", "content": "the agent answers " * 7},
        ]
        facts.append(
            events.ModelCalled(
                model="small", context_ids=fresh, sampled_ids=sampled, logprobs=array("f", [-0.5] * len(sampled)),
                version_spans=[events.VersionSpan(version=version, start=0, end=len(sampled))],
                sampling=events.Sampling(temperature=1.0), messages=said, latency_s=0.5,
                usage=events.Usage(prompt_tokens=len(context) + 24, completion_tokens=len(sampled)), **prefix,
            )
        )  # fmt: skip
        context = context + fresh + sampled
        tool, failed = rng.choice(("search", "read", "grep")), rng.random() < 0.05
        facts.append(events.ToolCalled(call_id=f"c{number}", tool=tool, arguments={"query": "x" * 200}))
        facts.append(
            events.ToolReturned(
                call_id=f"c{number}", tool=tool, result={"text": "y" * 300}, latency_s=0.1,
                status=events.ToolStatus.ERROR if failed else events.ToolStatus.OK,
                error_class=events.ToolErrorClass.TIMEOUT if failed else None,
            )
        )  # fmt: skip
    facts.append(events.TrajectoryEnded(answer={"recall": recall}))
    for sequence, fact in enumerate(facts):
        at = time_ms + sequence
        yield Envelope(uuid7(at, rng.randbytes(10)), fact.TYPE, "/bench", at, name, sequence), fact


def scored(trajectory: Trajectory, reference: Reference) -> Reward:
    """The reward: recall, and a component of format that falls in one source."""
    started = trajectory.started
    assert started is not None
    recall = float(trajectory.answer["recall"])
    oldest = trajectory.versions[0]
    form = 0.5 if started.task["source"] == "wide" and oldest > 10 else 1.0
    return Reward(
        trajectory_id=trajectory.trajectory_id, trajectory=reference, agent=started.agent, run=started.run,
        task_id=started.task_id, group_id=started.group_id, group_size=started.group_size, tenant=started.tenant,
        spec="shop@1",
        components={"recall": Component(value=recall, weight=1.0), "format": Component(value=form, weight=0.0)},
        total=recall, maximum=1.0, defects=trajectory.defects, oldest_version=oldest, newest_version=oldest,
        sampled_tokens=trajectory.sampled_tokens, turns=len(trajectory.turns), status=trajectory.status,
        ended_ms=trajectory.ended_ms,
    )  # fmt: skip


class Log:
    """Offsets by topic, and the inserts."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._ends = {topic.name: 0 for topic in TOPICS}
        self.rows = 0

    def write(self, records: dict[str, list[tuple[Envelope, Record]]], logged_ms: int) -> None:
        """Convert and insert the records of each topic as the sink does."""
        for topic, each in records.items():
            stored = []
            for envelope, payload in each:
                message = encode(payload, key=envelope.subject, envelope=envelope)
                offset = self._ends[topic] = self._ends[topic] + 1
                stored.append(StoredRecord(topic, 0, offset, logged_ms, message.key, message.value, message.headers))
            batch = convert(stored)
            assert batch.unreadable + batch.unstorable == []
            for table, rows in batch.tables:
                insert(self._client, table, rows, f"{topic}:{self._ends[topic]}:{table.name}")
            self.rows += len(stored)


def fill(client: "Client", count: int) -> int:
    """Fold and insert about ``count`` events; returns the number of trajectories."""
    log, rng, now = Log(client), random.Random(7), int(time.time() * 1000)
    each = 20 * GROUP
    groups = max(VERSIONS, count // each)
    for first in range(0, groups, CHUNK):
        facts: list[tuple[Envelope, Record]] = []
        logged = now - DAYS * 86_400_000 + int(DAYS * 86_400_000 * first / groups)
        for group in range(first, min(groups, first + CHUNK)):
            version = group * VERSIONS // groups
            for member in range(GROUP):
                facts += attempt(group, member, version, logged, rng)
        written = drive(with_run(TOPOLOGY, "score", scored), facts)
        derived = {
            topic: [
                (Envelope(derived_id(topic, first, n), record.TYPE, "/bench", logged, _key(record)), record)
                for n, record in enumerate(records)
            ]
            for topic, records in written.items()
            if records and topic in TABLES_OF_TOPIC and topic not in ("events", "feedback")
        }
        trained = [record for record in written["training"] if isinstance(record, TrainingGroup)]
        steps = _step(trained, first // CHUNK + 1, version) if trained else []
        judged = [record.trajectory_id for record in written["trajectories"] if isinstance(record, Trajectory)][::10]
        feedback: list[tuple[Envelope, Record]] = [
            (Envelope(uuid7(logged, rng.randbytes(10)), events.FeedbackGiven.TYPE, "/bench", logged + 60_000, name),
             events.FeedbackGiven(signal="accepted", value=1.0, delay_s=60.0))
            for name in judged
        ]  # fmt: skip
        log.write({"events": facts, **derived, "steps": steps, "feedback": feedback}, logged)
    return groups * GROUP


def _key(record: Record) -> str:
    return str(getattr(record, "trajectory_id", None) or getattr(record, "group_id", None) or RUN)


def _step(groups: list[TrainingGroup], step: int, version: int) -> list[tuple[Envelope, Record]]:
    at = Reference(partition=0, offset=0)
    trained = [
        TrainedGroup(
            group_id=group.group_id, group=at, trajectory_ids=[member.trajectory_id for member in group.members],
            trajectories=[member.trajectory for member in group.members],
        )
        for group in groups
    ]  # fmt: skip
    record = Step(run=RUN, step=step, version=version + 1, groups=trained, config_sha256="c", data_sha256="d",
                  metrics={"loss": 0.1, "reward_mean": 0.5})  # fmt: skip
    return [(Envelope(derived_id("step", step), record.TYPE, "/bench", int(time.time() * 1000), RUN), record)]


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--clickhouse")
    options = parser.parse_args()
    with clickhouse(options.clickhouse) as (url, server):
        client = open_client(url, timeout_s=600)
        ensure_tables(client)
        set_prices(client, {"small": [1.0, 2.0]}, "USD")
        begun = time.perf_counter()
        trajectories = fill(client, options.events)
        (count,) = client.query("SELECT count() FROM events").result_rows[0]
        seconds = time.perf_counter() - begun
        print(f"{count} events, {trajectories} trajectories, folded and inserted in {seconds:.0f} s\n")
        size = client.query(
            "SELECT table, formatReadableSize(sum(data_compressed_bytes)), uniqExact(partition), count() "
            "FROM system.parts WHERE database = currentDatabase() AND active GROUP BY table "
            "ORDER BY sum(data_compressed_bytes) DESC LIMIT 4"
        ).result_rows
        print("; ".join(f"{table} {held} in {parts} parts, {weeks} partitions" for table, held, weeks, parts in size))
        print("\n| query | p50, ms | p95, ms | processor, ms |\n|---|---|---|---|")
        for path, sql, parameters in _queries():
            _report(path, partial(client.query, sql, parameters=parameters), options.repeats, server)
        _report("the look for changes, each two seconds of an idle page", partial(read_versions, client), 50, server)
        print("\n| page, open and idle | dashboard, % of a core | ClickHouse, % of a core |\n|---|---|---|")
        before, begun = cpu_s(server), time.monotonic()
        time.sleep(options.idle)
        alone = (cpu_s(server) - before) / (time.monotonic() - begun)
        print(f"| none, no dashboard | – | {100 * alone:.1f} |", flush=True)
        for page in PAGES:
            dashboard, engine = _idle(
                url, f"{page.path}/stream?run={RUN}&a_run={RUN}&b_run={RUN}", options.idle, server
            )
            print(f"| {page.path or '/'} | {100 * dashboard:.1f} | {100 * engine:.1f} |", flush=True)


def _idle(clickhouse_url: str, path: str, seconds: float, server: list[psutil.Process]) -> tuple[float, float]:
    """Processor seconds per second of a dashboard with one open page, and of ClickHouse, after the first snapshot."""
    port = free_port()
    env = {**os.environ, "HEADRACE_CLICKHOUSE": clickhouse_url, "HEADRACE_DASHBOARD_PORT": str(port)}
    argv = [sys.executable, "-m", "headrace.deploy.cli", "worker", "dashboard"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_listening(port), 120)
            with urllib.request.urlopen(f"http://{HOST}:{port}{path}") as stream:
                for line in stream:
                    # The second look finds nothing new, or merges that were still in progress.
                    if line == b"event: same\n":
                        break
                dashboard, engine = [psutil.Process(process.pid)], server
                before, begun = (cpu_s(dashboard), cpu_s(engine)), time.monotonic()
                while time.monotonic() - begun < seconds:
                    stream.readline()
                spent = time.monotonic() - begun
                return (cpu_s(dashboard) - before[0]) / spent, (cpu_s(engine) - before[1]) / spent
        finally:
            process.terminate()


def is_listening(port: int) -> bool:
    """Whether something accepts connections at ``port``."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until ``done``; raises ``TimeoutError`` after ``seconds``."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"not ready after {seconds:g} s")
        time.sleep(0.2)


def _queries() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, SQL and parameters of every panel, of the overview's also split by source and cut to a tool, and of every
    question."""
    sides = {"a_run": RUN, "a_from": "0", "a_to": "4", "b_run": RUN, "b_from": str(VERSIONS - 5), "b_to": str(VERSIONS)}
    for page in PAGES:
        for panel in page.panels:
            if panel.source:  # drawn from another panel's result
                continue
            name = f"{page.path or '/overview'}: {panel.name}"[1:]
            yield name, panel.sql, selection(page.parameters, {"run": RUN, **sides})
            if panel.cuts and not page.path:
                cut = selection(page.parameters, {"run": RUN, "by": "source", "tool": "grep"})
                yield f"{name}, by source, tool grep", panel.sql, cut
    for name, sql in re.findall(r"```sql (\S+)\n(.*?)\n```", QUESTIONS.read_text(), re.S):
        yield f"question: {name}", re.sub(r"^--.*\n?", "", sql, flags=re.M), {"run": RUN}


def _report(name: str, ask: Callable[[], object], repeats: int, server: list[psutil.Process]) -> None:
    times, before = list[float](), cpu_s(server)
    for _ in range(repeats):
        begun = time.perf_counter()
        ask()
        times.append((time.perf_counter() - begun) * 1000)
    processor = (cpu_s(server) - before) / repeats * 1000 if server else float("nan")
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    print(f"| {name} | {statistics.median(times):.0f} | {p95:.0f} | {processor:.0f} |", flush=True)


if __name__ == "__main__":
    main()
