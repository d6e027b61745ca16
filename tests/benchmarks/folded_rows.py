"""Rows as the stream processors and the sink make them, many of them and cheaply: for benchmarks of tables and pages.

    fill(client, 10_000_000)      → 500,000 trajectories of 20 events in ClickHouse, and what became of them
    copy(client, 83)              → 84 times as many: ClickHouse stores each row again under other ids

Every event goes through assemble, score and group (the operators that run live, in memory), and all records through the
sink's conversion and insert. Payloads are encoded once for each policy version; ids, times, tasks, groups and answers
are each trajectory's own. Only steps and feedback are written here, because no trainer and no user runs.

Groups of eight at 1,000 tasks of two sources, policy versions 0 to 39 over three weeks, five tenants, three tools.
"""

import random
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.schemas import events
from headrace.schemas.envelope import ID, SUBJECT, TIME, Envelope, to_headers
from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.model import Record
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import EVENTS, REJECTED, TRAINING
from headrace.schemas.topics import REWARDS as REWARDS_TOPIC
from headrace.schemas.wire import Message, decode, encode
from headrace.streams.assembly.arrival import Arrival, arrival_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.database import insert
from headrace.streams.clickhouse.schema import compute_missing
from headrace.streams.processors.group import restore_group
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import RewardSpec, reward
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Start
from headrace.streams.scoring.score import PlainReference, PlainReward, reward_message, score_or_label
from headrace.streams.typed_reader import TypedReader

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RUN = "r1"
GROUP = 8
VERSIONS = 40
DAYS = 20
TASKS = 1000
EVENTS_EACH = 20
"""Events of a trajectory: a start, six model calls, six tool calls with results, an end."""
VARIANTS = 24
"""Different middles of a trajectory, calls with results, for each policy version."""
LARGEST_CHUNK = 256
"""Most groups that are folded and inserted together: 40,960 events, as a sink with a backlog inserts them."""


@reward(weight=1.0)
def recall(trajectory: Trajectory) -> float:
    """Share of the targets in the answer."""
    return float(trajectory.answer["recall"])


@reward(weight=0.0)
def form(trajectory: Trajectory) -> float:
    """A component that falls in one source after version 10."""
    started = trajectory.started
    return 0.5 if started and started.task["source"] == "wide" and trajectory.versions[0] > 10 else 1.0


SHOP = RewardSpec("shop", 1, (recall, form), maximum=1.0)
SHOP_REWARDS = Rewards({"shop": SHOP}, OUTCOME)
_TRAJECTORIES = TypedReader(Trajectory)


def fill(client: "Client", count: int) -> int:
    """Fold and insert about ``count`` events; returns the number of trajectories."""
    groups = max(VERSIONS, count // (EVENTS_EACH * GROUP))
    chunk = min(LARGEST_CHUNK, groups // VERSIONS)
    now = int(time.time() * 1000)
    with ThreadPoolExecutor(1) as inserting:
        log, pipeline, rng = _Log(client, inserting), _Pipeline(), random.Random(7)
        for first in range(0, groups, chunk):
            logged = now - DAYS * 86_400_000 + int(DAYS * 86_400_000 * first / groups)
            facts: list[Arrival] = []
            for group in range(first, min(groups, first + chunk)):
                version = group * VERSIONS // groups
                facts += _group(group, version, logged, len(facts) + log.ends[EVENTS.name], rng)
            derived = pipeline.fold(facts, logged, log.ends)
            records: dict[str, Sequence[LogRecord]] = {EVENTS.name: facts, **derived}
            records |= _trainer(derived[TRAINING.name], first // chunk + 1, version, logged, log.ends["steps"])
            records |= _users(derived["trajectories"][::10], logged, log.ends["feedback"], rng)
            log.write(records)
        log.wait()
    compute_missing(client)
    return groups * GROUP


def copy(client: "Client", times: int) -> None:
    """Store each row ``times`` more times, as other trajectories of other groups at the same time: at a hundredth of
    what folding them costs. The payloads of the copied events are empty.
    """
    for table, names in _COPIED.items():
        columns = [
            str(name)
            for (name,) in client.query(
                "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {table:String} "
                "AND default_kind != 'EPHEMERAL' ORDER BY position",
                parameters={"table": table},
            ).result_rows
        ]
        renamed = {name: _RENAMED[name] for name in ("id", "payload", *names) if name in columns}
        listed = ", ".join(f"`{name}`" for name in columns)
        made = ", ".join(renamed.get(name, f"`{name}`") for name in columns)
        client.command(
            f"INSERT INTO {table} ({listed}) SELECT {made} FROM {table} CROSS JOIN "
            f"(SELECT number + 1 AS copy FROM numbers({times})) AS copies "
            "SETTINGS max_partitions_per_insert_block = 0, optimize_on_insert = 0"
        )
    compute_missing(client)


_RENAMED = {
    "id": "reinterpretAsUUID(sipHash128(id, copy))",
    # The time at its beginning stays, so that rows of one time stand together, as in production.
    "trajectory_id": "concat(substring(trajectory_id, 1, 14), lower(hex(cityHash64(trajectory_id, copy))))",
    "group_id": "concat(group_id, '-', toString(copy))",
    "payload": "''",
}
_COPIED = {
    **dict.fromkeys(("trajectories", "rewards", "training", "rejected", "step_members"), ("trajectory_id", "group_id")),
    **dict.fromkeys(("feedback", "events"), ("trajectory_id",)),
}
"""Table → the columns that a copy has of its own."""


class _Log:
    """The next offset of each topic, and the inserts, which run in a thread while the next chunk is folded."""

    def __init__(self, client: "Client", inserting: ThreadPoolExecutor) -> None:
        self.ends = dict.fromkeys((EVENTS.name, "trajectories", "rewards", "training", "rejected", "steps"), 0)
        self.ends["feedback"] = 0
        self._client = client
        self._inserting = inserting
        self._running: Future[None] | None = None

    def write(self, records: dict[str, Sequence[LogRecord]]) -> None:
        """Convert and insert the records of each topic as the sink does."""
        batches = []
        for topic, each in records.items():
            self.ends[topic] += len(each)
            batch = convert(each)
            assert batch.unreadable + batch.unstorable == []
            batches.append((topic, self.ends[topic], batch))
        self.wait()

        def insert_all() -> None:
            for topic, end, batch in batches:
                for table, rows in batch.tables:
                    insert(self._client, table, rows, f"{topic}:{end}:{table.name}")

        self._running = self._inserting.submit(insert_all)

    def wait(self) -> None:
        """Wait for the inserts."""
        if self._running is not None:
            self._running.result()


class _Pipeline:
    """The processors, on one partition."""

    def __init__(self) -> None:
        self._assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
        self._groups, _ = restore_group(Rules(), Start())

    def fold(self, facts: list[Arrival], logged: int, ends: dict[str, int]) -> dict[str, list[StoredRecord]]:
        """Returns what assemble, score and group make of ``facts``, by topic."""
        for _ in self._assembly.take_all(facts):
            pass
        made = _stored(self._assembly.pending, "trajectories", logged, ends["trajectories"])
        self._assembly.sent([record.offset for record in made])
        scored = [_scored(record) for record in made]
        rewards = _stored(scored, "rewards", logged, ends["rewards"])
        for record in rewards:
            self._groups.process(record)
        outgoing = self._groups.flush().outgoing
        return {
            "trajectories": made,
            "rewards": rewards,
            **{
                topic.name: _stored([each for each in outgoing if each.topic is topic], topic.name, logged,
                                    ends[topic.name])
                for topic in (TRAINING, REJECTED)
            },
        }  # fmt: skip


def _stored(outgoing: Iterable[Outgoing], topic: str, logged: int, end: int) -> list[StoredRecord]:
    return [
        StoredRecord(topic, 0, end + number, logged, each.message.key, each.message.value, each.message.headers)
        for number, each in enumerate(outgoing)
    ]


def _scored(record: StoredRecord) -> Outgoing:
    """The reward of a trajectory, as the processor makes it under a spec that ships: from its struct."""
    trajectory, traceparent = _TRAJECTORIES.read(record)
    place = PlainReference(partition=record.partition, offset=record.offset)
    made, error = score_or_label(trajectory, place, rewards=SHOP_REWARDS, make=PlainReward)
    assert error is None
    return Outgoing(REWARDS_TOPIC, reward_message(made, origin=traceparent), record.timestamp)


def _group(number: int, version: int, at: int, offset: int, rng: random.Random) -> Iterator[Arrival]:
    """The events of a group's attempts, one attempt after the other."""
    source, hops = ("wide", "deep")[number % 2], 1 + number % 4
    skill = 0.2 + 0.6 * version / VERSIONS - 0.1 * hops
    start = _message(
        events.TrajectoryStarted(
            task_id=f"task-{number % TASKS}", group_id=f"g{number}", group_size=GROUP, agent="shop", run=RUN,
            tenant=f"tenant-{number % 5}", task={"source": source, "hops": hops},
        ),
        0,
    )  # fmt: skip
    for _ in range(GROUP):
        found = min(max(round(rng.gauss(skill, 0.2), 2), 0), 1) if skill > 0.1 else 0.0
        name = uuid7(at, rng.randbytes(10)).encode()
        middle = _middle(version, rng.randrange(VARIANTS))
        for sequence, message in enumerate((start, *middle, _end(found))):
            moment = at + sequence
            headers = message.headers
            own = [
                headers[0], (ID, uuid7(moment, rng.randbytes(10)).encode()), *headers[2:4],
                (TIME, _rfc3339(moment)), (SUBJECT, name), *headers[6:],
            ]  # fmt: skip
            yield arrival_of(StoredRecord(EVENTS.name, 0, offset, at, name, message.value, own))
            offset += 1


@lru_cache(maxsize=2 * VARIANTS)
def _middle(version: int, variant: int) -> list[Message]:
    """The calls of an attempt: six of the model, each followed by one of a tool with its result."""
    rng = random.Random(version * VARIANTS + variant)
    context, facts = array("i"), list[Record]()
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
    return [_message(fact, 1 + number) for number, fact in enumerate(facts)]


@lru_cache(maxsize=128)
def _end(found: float) -> Message:
    return _message(events.TrajectoryEnded(answer={"recall": found}), EVENTS_EACH - 1)


def _message(fact: Record, sequence: int) -> Message:
    return encode(fact, key="", envelope=Envelope("", fact.TYPE, "/bench", 0, "", sequence))


@lru_cache(maxsize=1024)
def _rfc3339(moment: int) -> bytes:
    return dict(to_headers(Envelope("", "", "", moment, "")))[TIME]


def _trainer(
    trained: Sequence[StoredRecord], step: int, version: int, logged: int, end: int
) -> dict[str, list[StoredRecord]]:
    """A step that is trained on the groups of the records ``trained``; none without groups."""
    at = Reference(partition=0, offset=0)
    groups = [group for each in trained if isinstance(group := decode(each.headers, each.value)[1], TrainingGroup)]
    if not groups:
        return {}
    members = [
        TrainedGroup(
            group_id=group.group_id, group=at, trajectory_ids=[member.trajectory_id for member in group.members],
            trajectories=[member.trajectory for member in group.members],
        )
        for group in groups
    ]  # fmt: skip
    record = Step(run=RUN, step=step, version=version + 1, groups=members, config_sha256="c", data_sha256="d",
                  metrics={"loss": 0.1, "reward_mean": 0.5})  # fmt: skip
    envelope = Envelope(derived_id("step", step), record.TYPE, "/bench", logged, RUN)
    return {"steps": [_written("steps", encode(record, key=RUN, envelope=envelope), logged, end)]}


def _users(
    trajectories: Sequence[StoredRecord], logged: int, end: int, rng: random.Random
) -> dict[str, list[StoredRecord]]:
    """Feedback on the trajectories of the records ``trajectories``, a minute later."""
    given = events.FeedbackGiven(signal="accepted", value=1.0, delay_s=60.0)
    made = []
    for number, each in enumerate(trajectories):
        name = (each.key or b"").decode()
        envelope = Envelope(uuid7(logged, rng.randbytes(10)), given.TYPE, "/bench", logged + 60_000, name)
        made.append(_written("feedback", encode(given, key=name, envelope=envelope), logged, end + number))
    return {"feedback": made}


def _written(topic: str, message: Message, logged: int, offset: int) -> StoredRecord:
    return StoredRecord(topic, 0, offset, logged, message.key, message.value, message.headers)
