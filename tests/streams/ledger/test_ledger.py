"""The ledger is right at any moment: whoever writes what in between, and however often it reads on."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.commands.ledger import command
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.topics import ALERTS, Topic
from headrace.streams.ledger.ledger import TOPICS_AGAINST_THE_STREAM, LedgerReader, read_ledger
from headrace.streams.ledger.tally import Ledger, Tally
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.fates import CIRCLE, Sent, assembled, event, grouped, rejected, scored, through, trained

MAKES: tuple[Callable[[str], Sent], ...] = (
    event,
    assembled,
    scored,
    grouped,
    lambda name: trained(1, name),
)
"""What each writer makes of what the one before it made."""
TOPICS = tuple(reversed(TOPICS_AGAINST_THE_STREAM))
PARTITIONS = 2


class SimulatedLog:
    """Topics that grow while they are read: before every record that a reader gets, some writer may write one."""

    def __init__(self, moves: Callable[[], int]) -> None:
        self.topics: dict[str, dict[int, list[StoredRecord]]] = {
            topic.name: {partition: [] for partition in range(PARTITIONS)} for topic in TOPICS
        }
        self.moves = moves
        self.numbers = count()
        self.stages: list[list[str]] = [[] for _ in MAKES]
        """Stage → trajectories that got so far and not further."""

    def write(self, sent: Sent) -> None:
        topic, message = sent
        partition = self.topics[topic.name][len(message.value) % PARTITIONS]
        headers = list(message.headers)
        partition.append(
            StoredRecord(topic.name, len(message.value) % PARTITIONS, len(partition), 0, b"", message.value, headers)
        )

    def someone_writes(self) -> None:
        """One writer takes a step: 0 starts a trajectory, n makes stage n of one; higher ones reject. Or nothing."""
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

    def counted_anew(self, ends: Mapping[str, Mapping[int, int]]) -> Ledger:
        tally = Tally()
        for name, partitions in ends.items():
            for partition, end in partitions.items():
                for record in self.topics[name][partition][:end]:
                    tally.add(name, dict(record.headers), record.value)
        return tally.ledger()


MOVES = st.lists(st.integers(0, len(MAKES) + 2), max_size=200)


def moves_of(drawn: list[int]) -> Callable[[], int]:
    left = iter(drawn)
    return lambda: next(left, len(MAKES) + 2)


@given(drawn=MOVES, before=st.integers(0, 60), rounds=st.integers(1, 6))
async def test_at_no_moment_is_there_an_effect_without_its_cause(drawn: list[int], before: int, rounds: int) -> None:
    log = SimulatedLog(moves_of(drawn))
    for _ in range(before):
        log.someone_writes()
    reader = LedgerReader(log.read)
    for _ in range(rounds):
        await reader.catch_up()
        found = reader.tally.ledger()
        assert found.adds_up, found.conflicts
        assert found == log.counted_anew(reader._next)
        for _ in range(3):
            log.someone_writes()


async def test_read_with_the_stream_there_would_be_effects_without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The order is what makes it right: in the other one the same log seems to contradict itself.
    monkeypatch.setattr("headrace.streams.ledger.ledger.TOPICS_AGAINST_THE_STREAM", TOPICS)
    log = SimulatedLog(moves_of([0, 0, 1, 0, 1, 2, 0, 1, 2, 3] * 20))
    for _ in range(10):
        log.someone_writes()
    reader = LedgerReader(log.read)
    await reader.catch_up()
    assert not reader.tally.ledger().adds_up


@given(drawn=MOVES, cut_after=st.integers(0, 40))
async def test_a_round_that_was_cut_off_is_set_right_by_the_next(drawn: list[int], cut_after: int) -> None:
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
    assert reader.tally.ledger() == log.counted_anew(reader._next)


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
    tally = Tally()
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
async def test_followed_it_tells_of_what_comes_and_ends_with_an_alert_where_it_stays_wrong(kafka: str) -> None:
    follower = following(kafka, "--every", "0.2", "--patience", "2", "--json")
    assert follower.stdout is not None
    try:
        first = json.loads(follower.stdout.readline())
        assert first["adds_up"]
        await write(kafka, *through("follow"))
        while (seen := json.loads(follower.stdout.readline()))["started"] == first["started"]:
            assert seen["adds_up"]
        await write(kafka, trained(7, "follow"))
        _, said = follower.communicate(timeout=60)
    finally:
        follower.kill()
    assert follower.returncode == 1
    assert "follow reached the trainer and is in no group" in said
    alerts = [Alert.model_validate_json(record.value or b"") async for record in read_to_end(kafka, ALERTS)]
    assert [(alert.source, alert.kind, alert.details["conflicting"]) for alert in alerts] == [
        ("/streams/ledger", "ledger_mismatch", 1)
    ]


@pytest.mark.kafka
async def test_a_follower_that_is_asked_to_end_ends_well(kafka: str) -> None:
    await write(kafka, grouped("follow"))  # what the test before left wrong
    follower = following(kafka, "--every", "30")
    assert follower.stdout is not None
    try:
        shown = follower.stdout.readline()
        follower.send_signal(signal.SIGTERM)
        _, said = follower.communicate(timeout=60)
    finally:
        follower.kill()
    assert "  adds up" in shown, f"{shown}{said}"
    assert follower.returncode == 0, said
