"""The ledger is correct at any moment, whatever is written between two reads and however often it resumes."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.commands.ledger import command
from headrace.schemas.kafka.bookmarks import Bookmark
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.fold_cache import UnusableFoldError
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.topics import ALERTS, REJECTED, Topic
from headrace.streams.ledger import kept
from headrace.streams.ledger.follow import FollowConfig, follow_ledger
from headrace.streams.ledger.kept import kept_ledger, pack_tally, unpack_tally
from headrace.streams.ledger.ledger import TOPICS_AGAINST_THE_STREAM, LedgerReader, read_ledger
from headrace.streams.ledger.tally import Ledger, LedgerTally
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.fates import CIRCLE, Sent, assembled, event, grouped, rejected, scored, through, trained

MAKES: tuple[Callable[[str], Sent], ...] = (
    event,
    assembled,
    scored,
    grouped,
    lambda name: trained(1, name),
)
"""Each writer's record, made from the previous writer's."""
TOPICS = tuple(reversed(TOPICS_AGAINST_THE_STREAM))
PARTITIONS = 2


class SimulatedLog:
    """Topics that grow while they are read: before each record that a reader gets, a writer may write one."""

    def __init__(self, moves: Callable[[], int]) -> None:
        self.topics: dict[str, dict[int, list[StoredRecord]]] = {
            topic.name: {partition: [] for partition in range(PARTITIONS)} for topic in TOPICS
        }
        self.moves = moves
        self.numbers = count()
        self.stages: list[list[str]] = [[] for _ in MAKES]
        """Stage → trajectories that reached this stage and no later one."""

    def write(self, sent: Sent) -> None:
        topic, message = sent
        partition = self.topics[topic.name][len(message.value) % PARTITIONS]
        headers = list(message.headers)
        partition.append(
            StoredRecord(topic.name, len(message.value) % PARTITIONS, len(partition), 0, b"", message.value, headers)
        )

    def someone_writes(self) -> None:
        """Let a writer take one step: 0 starts a trajectory, n writes stage n of one; higher ones reject or idle."""
        move = self.moves()
        if move == 0:
            name = f"t{next(self.numbers)}"
            self.stages[0].append(name)
            self.write(event(name))
        elif move < len(MAKES) and self.stages[move - 1]:
            name = self.stages[move - 1].pop(0)
            self.stages[move].append(name)
            self.write(MAKES[move](name))
        elif move == len(MAKES) and self.stages[2]:
            self.write(rejected(self.stages[2].pop()))
        elif move == len(MAKES) + 1 and self.stages[3]:
            self.write(rejected(self.stages[3].pop(), Reason.STALE, Stage.ADMISSION))

    async def read(self, topic: Topic, start: Mapping[int, int]) -> AsyncIterator[LogRecord]:
        ends = {partition: len(records) for partition, records in self.topics[topic.name].items()}
        for partition, end in ends.items():
            for offset in range(start.get(partition, 0), end):
                self.someone_writes()
                yield self.topics[topic.name][partition][offset]
        self.someone_writes()


def tally_of(log: SimulatedLog, reader: LedgerReader) -> LedgerTally:
    """A fresh count of all records before the reader's positions."""
    tally = LedgerTally()
    for name, partitions in reader.positions.items():
        for partition, end in partitions.items():
            for record in log.topics[name][partition][:end]:
                tally.add(name, dict(record.headers), record.value)
    return tally


MOVES = st.lists(st.integers(0, len(MAKES) + 2), max_size=200)


def moves_of(drawn: list[int]) -> Callable[[], int]:
    left = iter(drawn)
    return lambda: next(left, len(MAKES) + 2)


@given(drawn=MOVES, before=st.integers(0, 60), rounds=st.integers(1, 6))
async def test_the_ledger_never_counts_an_effect_without_its_cause(drawn: list[int], before: int, rounds: int) -> None:
    log = SimulatedLog(moves_of(drawn))
    for _ in range(before):
        log.someone_writes()
    reader = LedgerReader(log.read)
    for _ in range(rounds):
        await reader.catch_up()
        found = reader.tally.ledger()
        assert found.adds_up, found.conflicts
        assert found == tally_of(log, reader).ledger()
        for _ in range(3):
            log.someone_writes()


async def test_reading_topics_in_stream_order_would_count_effects_without_causes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The order of topics makes the count correct: in the other order the same log seems to contradict itself.
    monkeypatch.setattr("headrace.streams.ledger.ledger.TOPICS_AGAINST_THE_STREAM", TOPICS)
    log = SimulatedLog(moves_of([0, 0, 1, 0, 1, 2, 0, 1, 2, 3] * 20))
    for _ in range(10):
        log.someone_writes()
    reader = LedgerReader(log.read)
    await reader.catch_up()
    assert not reader.tally.ledger().adds_up


@given(drawn=MOVES, cut_after=st.integers(0, 40))
async def test_an_interrupted_pass_is_completed_by_the_next(drawn: list[int], cut_after: int) -> None:
    log = SimulatedLog(moves_of(drawn))
    for _ in range(50):
        log.someone_writes()
    given_out = count()
    cut = True

    async def unreliable(topic: Topic, start: Mapping[int, int]) -> AsyncIterator[LogRecord]:
        async for record in log.read(topic, start):
            if cut and next(given_out) == cut_after:
                raise ConnectionError
            yield record

    reader = LedgerReader(unreliable)
    try:
        await reader.catch_up()
    except ConnectionError:
        cut = False
        await reader.catch_up()
    assert reader.tally.ledger().adds_up
    assert reader.tally.ledger() == tally_of(log, reader).ledger()


@given(drawn=MOVES, before=st.integers(0, 60), rounds=st.lists(st.booleans(), min_size=1, max_size=6))
async def test_a_kept_and_resumed_fold_equals_the_whole_fold(drawn: list[int], before: int, rounds: list[bool]) -> None:
    log = SimulatedLog(moves_of(drawn))
    for _ in range(before):
        log.someone_writes()
    reader = LedgerReader(log.read)
    for is_kept in rounds:
        await reader.catch_up()
        whole = tally_of(log, reader)
        assert reader.tally.accounts == whole.accounts
        assert reader.tally.ledger() == whole.ledger()
        if is_kept:
            reader = LedgerReader(log.read, unpack_tally(pack_tally(reader.tally)), reader.marks)
        for _ in range(3):
            log.someone_writes()


def test_every_kind_of_account_round_trips_with_its_counts() -> None:
    whole = LedgerTally()
    bad = (REJECTED, replace(rejected("bad")[1], value=b"{"))
    for topic, message in (
        *CIRCLE,
        trained(7, "alone"),
        *through("twice", trained(1, "twice"), trained(2, "twice")),
        bad,
    ):
        whole.add(topic.name, dict(message.headers), message.value)
    again = unpack_tally(pack_tally(whole))
    assert whole.unreadable == 1
    assert again.accounts == whole.accounts
    assert again.ledger() == whole.ledger()
    assert not again.ledger().adds_up


@pytest.mark.parametrize("packed", [b"", b"\x00", pack_tally(LedgerTally())[:-1], b"\x92\x81\xa1\xff\x90\x00"])
def test_state_that_is_not_a_tally_is_refused(packed: bytes) -> None:
    with pytest.raises(UnusableFoldError, match="damaged"):
        unpack_tally(packed)


async def test_nothing_is_read_twice() -> None:
    log = SimulatedLog(moves_of([]))
    for sent in CIRCLE:
        log.write(sent)
    read: list[tuple[str, int, int]] = []

    async def noted(topic: Topic, start: Mapping[int, int]) -> AsyncIterator[LogRecord]:
        async for record in log.read(topic, start):
            read.append((record.topic, record.partition, record.offset))
            yield record

    reader = LedgerReader(noted)
    await reader.catch_up()
    for sent in through("new"):
        log.write(sent)
    await reader.catch_up()
    assert len(set(read)) == len(read) == len(CIRCLE) + 3


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def following(bootstrap: str, *options: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "headrace.deploy.cli", "ledger", "--kafka", bootstrap, "--follow", *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def write(bootstrap: str, *sent: Sent) -> None:
    async with open_producer(bootstrap) as producer:
        for topic, message in sent:
            await (await send(producer, topic, message))


@pytest.mark.kafka
async def test_the_log_of_a_broker_is_counted(kafka: str) -> None:
    await write(kafka, *CIRCLE)
    tally = LedgerTally()
    for topic, message in CIRCLE:
        tally.add(topic.name, dict(message.headers), message.value)
    assert await read_ledger(kafka) == tally.ledger()


@pytest.mark.kafka
def test_the_command_prints_it_whole_and_by_key(kafka: str) -> None:
    status, shown = invoke("--kafka", kafka)
    assert (status, "It adds up: 8." in shown) == (0, True)
    status, shown = invoke("--kafka", kafka, "--by", "stage")
    assert status == 0
    assert "ungrouped" in shown
    assert json.loads(invoke("--kafka", kafka, "--json")[1])["adds_up"] is True
    by_step = json.loads(invoke("--kafka", kafka, "--by", "step", "--json")[1])["by"]
    assert by_step["rows"]["r/2"] == {"trained": 1, "rejected": 0, "pending": 0}
    assert invoke("--kafka", kafka, "--by", "step", "--follow")[0] == 2


@pytest.mark.kafka
async def test_the_next_count_reads_only_new_records(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folded: list[str] = []
    add = LedgerTally.add

    def noted(self: LedgerTally, topic: str, headers: Mapping[str, bytes | None], value: bytes | None) -> None:
        folded.append(topic)
        add(self, topic, headers, value)

    monkeypatch.setattr(LedgerTally, "add", noted)

    async def counted(*, from_start: bool = False) -> tuple[Ledger, int]:
        folded.clear()
        reader = await kept_ledger(kafka, tmp_path, from_start=from_start)
        return reader.tally.ledger(), len(folded)

    await write(kafka, *through("kept"))
    first, every = await counted()
    assert await counted() == (first, 0)
    await write(kafka, *through("since"))
    second, fresh = await counted()
    assert (second.started, fresh) == (first.started + 1, 3)
    assert await counted(from_start=True) == (second, every + 3)

    folded.clear()
    stop, followed = asyncio.Event(), []
    await follow_ledger(
        FollowConfig(kafka, cache=tmp_path), stop=stop, report=lambda check: (followed.append(check.ledger), stop.set())
    )
    assert (followed, folded) == ([second], [])
    # A release that reads other records begins anew: the one before it may have counted some as unreadable.
    monkeypatch.setattr(kept, "_DECODED", (*kept._DECODED, Alert))
    assert await counted() == (second, every + 3)
    assert "another release" in caplog.text
    # A damaged fold or a different log causes a full read, which is logged.
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert await counted() == (second, every + 3)
    assert "damaged" in caplog.text
    monkeypatch.setattr("headrace.schemas.kafka.bookmarks.bookmark", lambda record: Bookmark(record.offset, "other"))
    assert await counted() == (second, every + 3)
    assert "does not contain the last record that was read" in caplog.text


@pytest.mark.kafka
async def test_follow_reports_new_records_and_a_persistent_mismatch(kafka: str) -> None:
    follower = following(kafka, "--every", "0.2", "--patience", "2", "--json")
    assert follower.stdout is not None
    try:
        first = json.loads(follower.stdout.readline())
        assert first["adds_up"]
        await write(kafka, *through("follow"))
        while (seen := json.loads(follower.stdout.readline()))["started"] == first["started"]:
            assert seen["adds_up"]
        await write(kafka, trained(7, "follow"))
        _, errors = follower.communicate(timeout=60)
    finally:
        follower.kill()
    assert follower.returncode == 1
    assert "follow reached the trainer and is in no group" in errors
    alerts = [Alert.model_validate_json(record.value or b"") async for record in read_to_end(kafka, ALERTS)]
    assert [(alert.source, alert.kind, alert.details["conflicting"]) for alert in alerts] == [
        ("/streams/ledger", "ledger_mismatch", 1)
    ]


@pytest.mark.kafka
async def test_follow_ends_cleanly_on_request(kafka: str) -> None:
    await write(kafka, grouped("follow"))  # the record that the previous test left out
    follower = following(kafka, "--every", "30")
    assert follower.stdout is not None
    try:
        shown = follower.stdout.readline()
        follower.send_signal(signal.SIGTERM)
        _, errors = follower.communicate(timeout=60)
    finally:
        follower.kill()
    assert "  adds up" in shown, f"{shown}{errors}"
    assert follower.returncode == 0, errors
