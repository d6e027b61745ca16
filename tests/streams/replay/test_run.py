"""Replays on a real broker rewrite what live processing wrote, next to it."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.system.children import Child, Command, end_of
from headrace.deploy.system.notify import ReadySocket
from headrace.schemas.envelope import TIME, Envelope, from_headers
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.records.group import Member, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.side_topics import LIVE, REFERENCES, SIDE, ReplayFinished, ReplayStage, side_topic
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, FEEDBACK, REJECTED, REWARDS, TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import decode, encode
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.diff.diff import diff
from headrace.streams.diff.read import read_sides
from headrace.streams.diff.side import DiffSide, group_states
from headrace.streams.raw import StoredRecord
from headrace.streams.replay import sink as replay_sink
from headrace.streams.replay.catalog import NoReplay, delete_replay, find_replay
from headrace.streams.replay.other_processors import further_processors
from headrace.streams.replay.placed import Placed
from headrace.streams.replay.run import ReplayConfig, run_replay
from headrace.streams.replay.sink import ReplayRefused
from headrace.streams.rewards.registry import parse_rewards
from headrace.streams.rules import Rules
from headrace.streams.topology import TOPOLOGY
from tests.clocks import with_producers_time
from tests.schemas.kafka.test_reading import delete_before
from tests.streams.archiving.archived import archive_now
from tests.streams.builders import session, ticks

pytestmark = pytest.mark.kafka

GROUPS, SIZE, IDLE_S = 40, 4, 60
TRAJECTORIES_MADE = GROUPS * SIZE + 4
"""The last four stay in an open group."""
VOTES = f"{Path(__file__).parents[1] / 'replayed_rewards.py'}:VOTES"
BREVITY = f"{Path(__file__).parents[1] / 'replayed_rewards.py'}:BREVITY"
SEARCHING = {"rewards": parse_rewards({"*": "search@1"})}


@cache
def now() -> int:
    """Start of the history, Unix milliseconds: the time at which the live workers are started.

    Records older than their topic's retention would be deleted during the test. The assembler also ticks by the wall
    clock: a history that was ten minutes old, as in a long run of all tests, was followed by a tick that let a replay,
    but not yet the live workers, close the last group.
    """
    return time.time_ns() // 1_000_000


class Stored(NamedTuple):
    """A record as stored in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]
    timestamp: int


async def stored(bootstrap: str, topic: Topic) -> list[Stored]:
    """All records of ``topic``, by partition and offset."""
    found = [
        Stored(each.partition, each.offset, each.key, each.value, dict(each.headers), each.timestamp)
        async for each in read_to_end(bootstrap, topic)
    ]
    return sorted(found, key=lambda each: (each.partition, each.offset))


def by_id(found: list[Stored]) -> dict[str, Stored]:
    return {from_headers(each.headers.items()).id: each for each in found}


async def side(bootstrap: str, topic: Topic, name: str) -> list[Stored]:
    return await stored(bootstrap, side_topic(topic, name))


@contextmanager
def running(bootstrap: str, folder: Path, part: str, **options: Any) -> Iterator[Child]:
    """A worker process that serves."""
    with ReadySocket() as said:
        env = {**said.env, "HEADRACE_KAFKA": bootstrap, "HEADRACE_DATA": str(folder)}
        env["HEADRACE_OPTIONS"] = json.dumps({part: options})
        child = Child(
            Command((sys.executable, "-m", "headrace.deploy.cli", "worker", part), env), folder / f"{part}.log"
        )
        try:
            asyncio.run(asyncio.wait_for(said.ready(), 60))
            yield child
        finally:
            child.stop()


def history() -> tuple[list[StoredRecord], list[StoredRecord]]:
    """Events and feedback: groups, some without variance, some with gaps; a quarter of them waits for feedback."""
    chance = random.Random(7)
    events: list[StoredRecord] = []
    feedback: list[StoredRecord] = []
    for number, member in product(range(GROUPS), range(SIZE)):
        agent = "voted" if number % 4 == 1 else "test"
        start = {"group_id": f"g{number}", "group_size": SIZE, "task_id": f"t{number % 5}", "agent": agent}
        outcome = 1.0 if number % 4 == 0 else float(member % 2)
        steps = ["ask", *["tool", "ask"] * chance.randrange(3), "answer"]
        time_ms = now() + 500 * number + chance.randrange(2000)
        made = session(f"s{number}-{member}", *steps, outcome=outcome, start=start, time_ms=time_ms)
        events += made[: None if chance.random() > 0.03 else 2]
        if agent == "voted":
            feedback += [said(f"s{number}-{member}", time_ms + chance.randrange(2000)) for _ in range(member)]
    last = max(record.timestamp for record in events)
    for number in range(4):
        # Stream time advances in every partition, so that unfinished trajectories close live and in a replay.
        start = {"group_id": "last", "group_size": 9}
        silence = ticks(last, last + 119_000, FoldLimits(idle_timeout_ms=1000 * IDLE_S))
        events += [replace(record, key=None, partition=number) for record in silence]
        events += [
            replace(record, timestamp=last + 120_000, key=None, partition=number)
            for record in session(f"last-{number}", "ask", start=start)
        ]
    return in_time(events), in_time(feedback)


def in_time(records: list[StoredRecord]) -> list[StoredRecord]:
    return sorted(records, key=lambda record: record.timestamp)


def said(trajectory_id: str, time_ms: int) -> StoredRecord:
    given = FeedbackGiven(signal="accepted", value=1.0)
    envelope = Envelope(uuid7(time_ms), given.TYPE, "/test", time_ms, trajectory_id)
    message = encode(given, key=trajectory_id, envelope=envelope)
    return StoredRecord(FEEDBACK.name, 0, 0, time_ms, message.key, message.value, message.headers)


async def produce(bootstrap: str, records: list[StoredRecord]) -> None:
    async with open_producer(bootstrap) as producer:
        for each in records:
            place = each.partition if each.key is None else None
            await producer.send(
                each.topic,
                key=each.key,
                value=each.value,
                headers=[*each.headers],
                partition=place,
                timestamp_ms=each.timestamp,
            )


async def dealt_with(bootstrap: str) -> tuple[int, int]:
    """Number of trajectories with a reward, and number with a fate."""
    rewards = {each.headers["ce_subject"] for each in await stored(bootstrap, REWARDS)}
    fates = [payload(each) for topic in (TRAINING, REJECTED) for each in by_id(await stored(bootstrap, topic)).values()]
    return len(rewards), sum(len(each.members) if isinstance(each, TrainingGroup) else 1 for each in fates)


def payload(record: Stored) -> Record:
    return decode(record.headers.items(), record.value)[1]


@pytest.fixture(scope="module")
def live(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A broker with a history that live workers have processed."""
    folder = tmp_path_factory.mktemp("live")
    events, feedback = history()
    with_producers_time(kafka, EVENTS, FEEDBACK)
    asyncio.run(produce(kafka, [*events, *feedback]))
    late = [said(f"s{number}-0", now() + 200_000 + number) for number in range(1, GROUPS, 4)]
    with (
        running(kafka, folder, "assemble", idle_timeout_s=IDLE_S, trust_producers_time=True),
        running(kafka, folder, "workers", rewards={"voted": VOTES}, trust_producers_time=True) as workers,
    ):
        deadline = time.monotonic() + 120
        while (found := asyncio.run(dealt_with(kafka))) != (TRAJECTORIES_MADE, TRAJECTORIES_MADE - 4):
            assert time.monotonic() < deadline, f"{found[0]} rewards, {found[1]} fates\n{end_of(workers.log)}"
            time.sleep(0.2)
        asyncio.run(produce(kafka, late))
        while sum(by_revision := revisions(asyncio.run(stored(kafka, REWARDS)))) < len(late):
            assert time.monotonic() < deadline, f"{by_revision}\n{end_of(workers.log)}"
            time.sleep(0.2)
    return kafka


def revisions(rewards: list[Stored]) -> list[int]:
    return [each.revision for record in rewards if isinstance(each := payload(record), Reward)]


async def replayed(
    bootstrap: str, name: str, stage: ReplayStage = ReplayStage.TRAJECTORIES, **fields: Any
) -> ReplayFinished:
    rewards = {"rewards": parse_rewards({"voted": VOTES})} | fields.pop("rules", {})
    rules = Rules(fold=FoldLimits(idle_timeout_ms=1000 * IDLE_S), **rewards)
    return await run_replay(ReplayConfig(bootstrap, name, stage, rules=rules, **fields))


def same_but(record: Stored, *, without: tuple[str, ...]) -> tuple[Any, ...]:
    kept = {name: value for name, value in record.headers.items() if name not in without}
    return record.partition, record.key, record.value, kept


async def test_a_replay_with_the_live_rules_writes_the_live_records(live: str) -> None:
    finished = await replayed(live, "same")
    for topic in (REWARDS, TRAINING, REJECTED):
        before, after = by_id(await stored(live, topic)), by_id(await side(live, topic, "same"))
        assert len(before) > 10
        assert before.keys() == after.keys()
        # A group's decision has the timestamp of its last member, which is arbitrary in a live run, as is what was
        # decided before it.
        ignored = (REFERENCES,) if topic is REWARDS else (REFERENCES, TIME, ROLLOUTS)
        for name, record in before.items():
            assert same_but(record, without=ignored) == same_but(after[name], without=ignored)
            assert topic is not REWARDS or record.timestamp == after[name].timestamp
            assert after[name].headers[REFERENCES] == LIVE
    assert finished.counts["read_trajectories"] == finished.counts["rewards"] == TRAJECTORIES_MADE
    assert finished.counts["rewards_open_at_end"] == 4
    assert finished.counts["revisions"] == GROUPS // 4
    assert await find_replay(live, "same") == finished


async def test_a_replay_from_events_recreates_trajectories_byte_for_byte(live: str) -> None:
    await replayed(live, "events", ReplayStage.EVENTS)
    before, after = await stored(live, TRAJECTORIES), await side(live, TRAJECTORIES, "events")
    assert [same_but(each, without=()) for each in before] == [same_but(each, without=(REFERENCES,)) for each in after]
    assert [each.timestamp for each in before] == [each.timestamp for each in after]
    places = {(each.partition, each.offset): each for each in after}
    for topic in (REWARDS, TRAINING, REJECTED):
        first, again = by_id(await stored(live, topic)), by_id(await side(live, topic, "events"))
        assert first.keys() == again.keys()
        for name, record in again.items():
            assert record.headers[REFERENCES] == SIDE
            old, new = (
                decode(first[name].headers.items(), first[name].value)[1],
                decode(record.headers.items(), record.value)[1],
            )
            for then, now in zip(pointing(old), pointing(new), strict=True):
                _, there = decode(
                    *((place := places[now.trajectory.partition, now.trajectory.offset]).headers.items(), place.value)
                )
                assert isinstance(there, Trajectory)
                assert there.trajectory_id == now.trajectory_id == then.trajectory_id
                assert now.model_copy(update={"trajectory": then.trajectory}) == then


def pointing(record: object) -> list[Reward | Rejection | Member]:
    """The references to trajectories in a record."""
    if isinstance(record, TrainingGroup):
        return list(record.members)
    assert isinstance(record, Reward | Rejection)
    return [record]


async def test_the_same_input_gives_the_same_bytes(live: str) -> None:
    one, two = await replayed(live, "one", ReplayStage.EVENTS), await replayed(live, "two", ReplayStage.EVENTS)
    for topic in ReplayStage.EVENTS.makes:
        assert await side(live, topic, "one") == await side(live, topic, "two")
    assert one == two.model_copy(update={"name": "one"})
    three = await replayed(live, "three", ReplayStage.EVENTS, rules=SEARCHING)
    assert three.sha256 != one.sha256


async def test_a_range_given_by_manifest_offsets_is_the_same_range(live: str) -> None:
    first = await replayed(live, "whole")
    spans = first.spans[TRAJECTORIES.name]
    begin, end = {span.partition: span.start for span in spans}, {span.partition: span.stop for span in spans}
    assert (await replayed(live, "again", begin=begin, end=end)).sha256 == first.sha256
    half = await replayed(live, "half", begin=now() + 500 * (GROUPS // 2), end=now() + 500 * GROUPS)
    inside = [
        now() + 500 * (GROUPS // 2) <= each.timestamp < now() + 500 * GROUPS
        for each in await stored(live, TRAJECTORIES)
    ]
    assert 0 < half.counts["read_trajectories"] == sum(inside) < TRAJECTORIES_MADE
    fates = sum(count for name, count in half.counts.items() if name == "trained" or name.startswith("rejected_"))
    left = half.counts.get("rewards_cut_at_begin", 0) + half.counts.get("rewards_open_at_end", 0)
    assert fates + left == half.counts["rewards"]
    assert left > 0
    with pytest.raises(ValueError, match="trajectories: partition 0 holds"):
        await replayed(live, "beyond", begin={0: 10**9})


async def test_an_interrupted_replay_is_completed_and_a_different_one_refused(
    live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await replayed(live, "uncut")

    class Killed(Exception):
        pass

    honest = replay_sink.ReplaySink.write
    left = 100

    async def torn(self: Any, placed: Iterable[Placed]) -> None:
        nonlocal left
        for each in placed:
            left -= 1
            if left < 0:
                raise Killed
            await honest(self, [each])

    monkeypatch.setattr(replay_sink.ReplaySink, "write", torn)
    with pytest.raises(Killed):
        await replayed(live, "torn")
    monkeypatch.undo()
    with pytest.raises(NoReplay, match="was not finished"):
        await find_replay(live, "torn")
    there = await side(live, REWARDS, "torn")
    assert 0 < len(there) < len(await side(live, REWARDS, "uncut"))
    with pytest.raises(ReplayRefused, match="holds other records"):
        await replayed(live, "torn", rules=SEARCHING)
    assert await side(live, REWARDS, "torn") == there
    completed = await replayed(live, "torn")
    assert completed.model_copy(update={"name": "uncut"}) == whole
    assert await side(live, REWARDS, "torn") == await side(live, REWARDS, "uncut")
    with pytest.raises(ReplayRefused, match="is complete"):
        await replayed(live, "torn")


async def test_a_replay_can_be_deleted(live: str) -> None:
    await replayed(live, "gone")
    further = further_processors(TOPOLOGY, (TRAJECTORIES, *ReplayStage.TRAJECTORIES.makes), Rules())
    made = {*ReplayStage.TRAJECTORIES.makes, *further.makes}
    assert len(await delete_replay(live, "gone")) == len(made) + 1
    with pytest.raises(NoReplay, match="no replay 'gone': there are"):
        await find_replay(live, "gone")


def test_the_command_replays_and_reports_the_result(live: str) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["replay", *arguments, "--kafka", live])

    shown = run("told", "--rewards", "test=search@1", "--group-policy", "*.baseline=leave_one_out")
    assert shown.exit_code == 0, shown.output
    assert "test search@1" in shown.output
    every = json.loads(run("told-3", "--json", "--rewards", BREVITY).output)
    assert set(every["rewards"].values()) == {"brevity@1"}
    manifest = json.loads(run("told-2", "--json", "--from", "2000-01-01").output)
    assert manifest["counts"]["rewards"] == TRAJECTORIES_MADE
    for wrong, says in (
        (("told",), "is complete"),
        (("a.b",), "not a valid name of a replay"),
        (("x", "--from", "yesterday"), "is neither a time"),
        (("x", "--rewards", "nosuch@1"), "no reward 'nosuch@1'"),
        (("x", "--rewards", "search@1", "--stage", "rewards"), "--stage rewards does not score"),
        (("x", "--judges"), "--judges needs an endpoint"),
        (("x", "--group-policy", "*.baseline=median"), "--group-policy"),
    ):
        result = run(*wrong)
        assert (result.exit_code, says in result.output) == (1, True), result.output
    assert "deleted replay.told.rewards" in run("told", "--delete").output


async def test_unreadable_events_are_dead_letters_of_the_replay_too(live: str) -> None:
    assert [each.headers for each in await side(live, DEAD_LETTERS, "events")] == [
        each.headers | {REFERENCES: SIDE} for each in await stored(live, DEAD_LETTERS)
    ]


def diffed(bootstrap: str, *arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["diff", *arguments, "--kafka", bootstrap])
    assert result.exit_code == 0, result.output
    return result


async def test_a_replay_with_the_live_rules_shows_no_differences(live: str) -> None:
    await replayed(live, "equal")
    found = diff(*await read_sides(live, "equal"))
    assert found.is_empty
    assert found.compared == TRAJECTORIES_MADE
    await replayed(live, "regrouped", ReplayStage.REWARDS)
    assert diff(*await read_sides(live, "regrouped", "equal")).is_empty


async def test_diff_shows_the_effect_of_another_reward(live: str) -> None:
    rules = {"rewards": parse_rewards({"*": BREVITY})}
    await replayed(live, "brief", rules=rules)
    before, after = await read_sides(live, "brief")
    found = diff(before, after)
    assert found.specs == (("outcome@1", "votes@1"), ("brevity@1",))
    assert found.entering == {"zero_variance_all_success": count_of(before, after)}
    assert found.flips > 0
    assert found.compared == TRAJECTORIES_MADE


def count_of(before: DiffSide, after: DiffSide) -> int:
    """Groups that had no variance and are trained now."""
    was, now = group_states(before), group_states(after)
    return sum(was[group].startswith("zero_variance") and now[group] == "trained" for group in was)


def test_the_command_shows_a_table_and_a_picture(live: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["replay", "seen", "--rewards", BREVITY, "--kafka", live]).exit_code == 0
    picture = tmp_path / "diff.png"
    shown = diffed(live, "seen", "--by", "task", "--picture", str(picture))
    for text in (
        "live (outcome@1, votes@1) → seen (brevity@1)",
        "would have an advantage of the opposite sign",
        "were zero variance",
    ):
        assert text in shown.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    as_json = json.loads(diffed(live, "seen", "--json", "--by", "agent").output)
    assert as_json["compared"] == sum(row["compared"] for row in as_json["by"])
    assert "no trajectory in common" in diffed(live, "seen", "--run", "nosuch").output
    missing = CliRunner().invoke(cli, ["diff", "nosuch", "--kafka", live])
    assert (missing.exit_code, "no replay 'nosuch'" in missing.output) == (1, True)


async def test_a_replay_reads_from_the_archive_what_retention_deleted(live: str, tmp_path: Path) -> None:
    """Last in the file, because it deletes records."""
    begin = now() + 500 * (GROUPS // 4)
    before = {stage: await replayed(live, f"logged-{stage}", stage) for stage in ReplayStage}
    later = await replayed(live, "logged-later", ReplayStage.EVENTS, begin=begin)
    await archive_now(live, tmp_path, file_records=150)
    for topic in (EVENTS, TRAJECTORIES, REWARDS):
        found = await stored(live, topic)
        for partition in range(topic.partitions):
            last = max(each.offset for each in found if each.partition == partition)
            await delete_before(live, TopicPartition(topic.name, partition), last + 1 if partition == 2 else last // 2)
    cut = await replayed(live, "cut", ReplayStage.EVENTS)
    assert cut.sha256 != before[ReplayStage.EVENTS].sha256
    for stage, finished in before.items():
        again = await replayed(live, f"archived-{stage}", stage, archive=tmp_path.as_uri())
        assert again == finished.model_copy(update={"name": again.name})
    again = await replayed(live, "archived-later", ReplayStage.EVENTS, begin=begin, archive=tmp_path.as_uri())
    assert again == later.model_copy(update={"name": again.name})
