"""A run whose rows are made by the fold: in one task source the reward is cut after version 40, in the others it rises.

Five sources, ten versions before the cut and ten from it on, two groups of four attempts a source and version.
"""

import random
from array import array
from collections.abc import Iterator

from clickhouse_connect.driver.client import Client

from headrace.schemas import events
from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.model import Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY, with_run
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

SOURCES = ("deep", "mail", "news", "shop", "wide")
CUT_SOURCE, CUT_FROM, CUT = "wide", 40, 0.25
VERSIONS = range(30, 50)
GROUPS, SIZE = 2, 4
TOOLS, CHANNELS = ("search", "read"), ("web", "slack")


def attempt(
    version: int, source: str, group: int, member: int, rng: random.Random
) -> Iterator[tuple[Envelope, Record]]:
    """The events of an attempt: a start, a model call, a call of a tool and its return, an end with the reward."""
    at = NOW_MS - 3_600_000 + version * 1000
    name = uuid7(at, rng.randbytes(10))
    skill = 0.3 + 0.02 * (version - VERSIONS[0]) - (CUT if source == CUT_SOURCE and version >= CUT_FROM else 0)
    tool, tokens = TOOLS[member % 2], 20 + 100 * (member % 2)
    facts: tuple[Record, ...] = (
        events.TrajectoryStarted(
            task_id=f"{source}-{group}", group_id=f"{source}-{version}-{group}", group_size=SIZE, agent="shop",
            run="cut", tenant=f"tenant-{group}", harness_version="h1",
            task={"source": source, "channel": CHANNELS[member // 2 % 2]},
        ),
        events.ModelCalled(
            model="small", context_ids=array("i", [1, 2]), sampled_ids=array("i", range(tokens)),
            logprobs=array("f", [-0.5] * tokens), sampling=events.Sampling(temperature=1.0),
            version_spans=[events.VersionSpan(version=version, start=0, end=tokens)],
        ),
        events.ToolCalled(call_id="c", tool=tool, arguments={}),
        events.ToolReturned(
            call_id="c", tool=tool, latency_s=0.1,
            status=events.ToolStatus.ERROR if tool == "read" and version >= CUT_FROM else events.ToolStatus.OK,
            error_class=events.ToolErrorClass.TIMEOUT if tool == "read" and version >= CUT_FROM else None,
        ),
        events.TrajectoryEnded(answer={"score": min(max(rng.gauss(skill, 0.08), 0), 1)}),
    )  # fmt: skip
    for sequence, fact in enumerate(facts):
        yield Envelope(uuid7(at, rng.randbytes(10)), fact.TYPE, "/test", at + sequence, name, sequence), fact


def scored(trajectory: Trajectory, reference: Reference) -> Reward:
    """The reward: the score of the answer."""
    started = trajectory.started
    assert started is not None
    score, oldest = float(trajectory.answer["score"]), trajectory.versions[0]
    return Reward(
        trajectory_id=trajectory.trajectory_id, trajectory=reference, agent=started.agent, run=started.run,
        task_id=started.task_id, group_id=started.group_id, group_size=started.group_size, tenant=started.tenant,
        spec="shop@1", components={"score": Component(value=score, weight=2.0)}, total=2 * score, maximum=2.0,
        defects=trajectory.defects, oldest_version=oldest, newest_version=oldest,
        sampled_tokens=trajectory.sampled_tokens, turns=len(trajectory.turns), status=trajectory.status,
        ended_ms=trajectory.ended_ms,
    )  # fmt: skip


def fill_cut_run(client: Client) -> int:
    """Fold and store the run ``cut``, twice, as after a lost commit. Returns its number of trajectories."""
    ensure_tables(client)
    rng = random.Random(11)
    facts = [
        fact
        for version in VERSIONS
        for source in SOURCES
        for group in range(GROUPS)
        for member in range(SIZE)
        for fact in attempt(version, source, group, member, rng)
    ]
    log = StoredLog()
    for number, (envelope, fact) in enumerate(facts):
        log.add("events", envelope.subject, fact, id=envelope.id, sequence=envelope.sequence, time_ms=NOW_MS + number)
    for topic, records in drive(with_run(TOPOLOGY, "score", scored), facts).items():
        if topic in ("trajectories", "rewards", "training", "rejected"):
            for number, record in enumerate(records):
                key = str(getattr(record, "trajectory_id", None) or getattr(record, "group_id", ""))
                log.add(topic, key, record, id=derived_id(topic, number))
    log.write(client, "first")
    log.write(client, "again")
    compute_missing(client)
    return len(VERSIONS) * len(SOURCES) * GROUPS * SIZE
