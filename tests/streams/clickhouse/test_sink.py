"""The sink against a real broker and a real ClickHouse: every record once, across crashes and rebalances."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven, ToolCalled, TrajectoryStarted
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_admin, open_consumer, open_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, FEEDBACK, REWARDS
from headrace.schemas.wire import Message, UnreadableRecord, decode_payload, encode
from headrace.streams.clickhouse import database as database_module
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.database import READER, RetryingClient, Stopped, open_client
from headrace.streams.clickhouse.database import insert as insert_rows
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import EVENTS as EVENTS_TABLE
from headrace.streams.dead_letters.build import original_bytes
from headrace.streams.dead_letters.redrive import Refusal
from headrace.streams.dead_letters.redriver import plan_redrive, read_dead_letters
from headrace.streams.raw import StoredRecord

SINK = """
import asyncio, json, sys
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
config = SinkConfig(**json.loads(sys.argv[1]))
asyncio.run(run_sink(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True)))
"""
FRONT = """
import pathlib, sys
from headrace.deploy.clickhouse.server import serve_clickhouse
folder = pathlib.Path(sys.argv[1])
serve_clickhouse(folder / "data", secrets=folder / "secrets", host="127.0.0.1", port=int(sys.argv[2]),
                 ready=lambda: None)
"""


def event(trajectory: str, sequence: int, tool: str = "search") -> Message:
    envelope = Envelope(
        id=derived_id(trajectory, sequence),
        type=ToolCalled.TYPE,
        source="/test",
        time_ms=1_700_000_000_000,
        subject=trajectory,
        sequence=sequence,
    )
    return encode(ToolCalled(call_id=str(sequence), tool=tool), key=trajectory, envelope=envelope)


def stored(message: Message, offset: int = 0, topic: str = "events") -> StoredRecord:
    return StoredRecord(topic, 0, offset, 1, message.key, message.value, message.headers)


async def send_events(bootstrap: str, name: str, count: int) -> None:
    """``count`` events in trajectories of ten."""
    async with open_producer(bootstrap) as producer:
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            await asyncio.gather(
                *[await send(producer, EVENTS, event(f"{name}-{number // 10}", number % 10)) for number in numbers]
            )


def count(url: str, query: str) -> int:
    client = open_client(url)
    try:
        return int(client.query(query).result_rows[0][0])
    finally:
        client.close()


async def until(url: str, query: str, expected: int) -> None:
    """Wait until ``query`` counts ``expected`` or more, within the test's own timeout."""
    found = 0
    client: Client | None = None
    while found < expected:
        await asyncio.sleep(0.1)
        try:
            client = client or await asyncio.to_thread(open_client, url)
            found = (await asyncio.to_thread(client.query, query)).result_rows[0][0]
        except ClickHouseError:
            continue  # ClickHouse or its table does not exist yet
    if client is not None:
        client.close()


@asynccontextmanager
async def running_sink(config: SinkConfig) -> AsyncIterator[None]:
    stop, ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_sink(config, stop=stop, ready=ready.set))
        await ready.wait()
        yield
        stop.set()


def events_of(name: str, what: str = "count()", final: str = "") -> str:
    return f"SELECT {what} FROM events {final} WHERE startsWith(trajectory_id, '{name}-')"


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_every_record_of_the_log_is_in_the_database(kafka: str, clickhouse: str) -> None:
    await send_events(kafka, "plain", 2_000)
    async with running_sink(SinkConfig(kafka, clickhouse)):
        await until(clickhouse, events_of("plain"), 2_000)
        await send_events(kafka, "later", 10)
        await until(clickhouse, events_of("later"), 10)
    assert count(clickhouse, events_of("plain", "uniqExact(id)")) == 2_000
    assert count(clickhouse, events_of("plain")) == 2_000
    client = open_client(clickhouse)
    places = client.query("SELECT partition, offset, id FROM events WHERE trajectory_id = 'plain-7'").result_rows
    in_log = {(record.partition, record.offset) async for record in read_to_end(kafka, EVENTS)}
    assert {(partition, offset) for partition, offset, _ in places} <= in_log
    assert {str(id) for _, _, id in places} == {derived_id("plain-7", sequence) for sequence in range(10)}


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_starts_and_sums_of_what_was_written_are_there_when_the_sink_has_stopped(
    kafka: str, clickhouse: str
) -> None:
    def message(payload: Record, id: str) -> Message:
        name = "summed-0"
        sequence = 0 if isinstance(payload, TrajectoryStarted) else None
        envelope = Envelope(id, payload.TYPE, "/test", 1_700_000_000_000, name, sequence)
        return encode(payload, key=name, envelope=envelope)

    scored = Reward(
        trajectory_id="summed-0", trajectory=Reference(partition=0, offset=0), run="summed", spec="s@1", total=1.0,
        maximum=2.0, oldest_version=3, group_id="g", ended_ms=1,
    )  # fmt: skip
    async with open_producer(kafka) as producer:
        started = message(TrajectoryStarted(task_id="t", agent="a", run="summed"), derived_id("summed", 0))
        await (await send(producer, EVENTS, started))
        await (await send(producer, REWARDS, message(scored, derived_id("summed", "reward"))))
    rewards = "SELECT count() FROM rewards WHERE run = 'summed'"
    async with running_sink(SinkConfig(kafka, clickhouse, group="summed")):
        await until(clickhouse, events_of("summed"), 1)
        await until(clickhouse, rewards, 1)
    assert count(clickhouse, "SELECT count() FROM starts FINAL WHERE run = 'summed'") == 1
    sums = "FROM slice_sums FINAL ARRAY JOIN kinds AS kind, totals AS total WHERE run = 'summed' AND version = 3"
    assert count(clickhouse, f"SELECT count() {sums} AND total = 0.5") == 8  # seven kinds of slice, and all


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_a_repeatedly_killed_sink_writes_everything_once(kafka: str, clickhouse: str) -> None:
    config = SinkConfig(kafka, clickhouse, group="killed", member="sink-0", linger_s=0.02, batch_records=64)
    total = 12_000
    await send_events(kafka, "killed", total)
    killed_midway = 0
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SINK, json.dumps(asdict(config)), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            await process.stdout.readline()
            before = count(clickhouse, events_of("killed"))
            await until(clickhouse, events_of("killed"), min(before + 1_000, total))
        finally:
            process.kill()
            await process.wait()
        killed_midway += 0 < count(clickhouse, events_of("killed")) < total
    async with running_sink(config):
        await until(clickhouse, events_of("killed", "uniqExact(id)"), total)
    assert killed_midway, "the sink was never killed in the middle: send more events"
    assert count(clickhouse, events_of("killed", final="FINAL")) == total
    # Announced ranges make the tokens exact, so there is nothing left for merges to deduplicate.
    assert count(clickhouse, events_of("killed")) == total


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_sinks_that_are_killed_after_their_first_insert_make_progress_in_a_backlog(
    kafka: str, clickhouse: str
) -> None:
    """Two static members, each started and killed again and again. Without a first batch that is written at once they
    would only write after twenty lingers, or once a batch is full, which no life of theirs lasts.
    """
    total, group = 36_000, "short-lived"
    await send_events(kafka, group, total)
    async with open_consumer(kafka) as consumer:
        places = await partitions_of(consumer, EVENTS)
        ends = await consumer.end_offsets(places)

    async def committed() -> dict[TopicPartition, int]:
        return {place: commit.offset for place, commit in (await committed_offsets(kafka, group, places)).items()}

    def config(member: str) -> SinkConfig:
        return SinkConfig(kafka, clickhouse, group=group, member=member, linger_s=600)

    written = dict.fromkeys(places, 0)
    for _ in range(2):
        lives = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", SINK, json.dumps(asdict(config(member))))
            for member in ("sink-0", "sink-1")
        ]
        try:
            async with asyncio.timeout(240):
                now = await committed()
                while any(now[place] < min(written[place] + 1, end) for place, end in ends.items()):
                    await asyncio.sleep(0.2)
                    now = await committed()
        finally:
            for life in lives:
                life.kill()
                await life.wait()
        written = now
    async with running_sink(SinkConfig(kafka, clickhouse, group=group)):
        await until(clickhouse, events_of(group, "uniqExact(id)"), total)
    assert count(clickhouse, events_of(group)) == total


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_partitions_that_move_between_two_sinks_are_written_once(kafka: str, clickhouse: str) -> None:
    config = SinkConfig(kafka, clickhouse, group="moving", linger_s=0.05, batch_records=128)
    async with running_sink(config):
        await send_events(kafka, "moving", 1_000)
        async with running_sink(config):
            await send_events(kafka, "moving2", 3_000)
            await until(clickhouse, events_of("moving2", "uniqExact(id)"), 3_000)
        await send_events(kafka, "moving3", 1_000)
        await until(clickhouse, events_of("moving3", "uniqExact(id)"), 1_000)
    for name, sent in (("moving", 1_000), ("moving2", 3_000), ("moving3", 1_000)):
        assert count(clickhouse, events_of(name, final="FINAL")) == sent


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_the_sink_waits_while_clickhouse_is_unavailable(kafka: str, tmp_path: Path) -> None:
    port = free_port()
    # The passwords do not exist yet either when the sink starts.
    secrets = tmp_path / "secrets"
    await send_events(kafka, "waiting", 100)
    config = SinkConfig(kafka, f"http://{HOST}:{port}", secrets, group="waiting", retry_most_s=0.2)
    stop = asyncio.Event()
    sink = asyncio.create_task(run_sink(config, stop=stop, ready=lambda: None))
    try:
        for name in ("waiting", "after"):
            front = await asyncio.create_subprocess_exec(sys.executable, "-c", FRONT, str(tmp_path), str(port))
            try:
                while not (secrets / READER).exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.05)
                url = f"http://{READER}:{(secrets / READER).read_text()}@{HOST}:{port}"
                await until(url, events_of(name), 100)
            finally:
                front.kill()
                await front.wait()
            await send_events(kafka, "after", 100)
        assert not sink.done()
    finally:
        # The sink ends although ClickHouse is unavailable and rows are left to write.
        stop.set()
        await sink


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_an_unreadable_record_is_a_dead_letter_if_no_processor_writes_one(kafka: str, clickhouse: str) -> None:
    good = encode(
        FeedbackGiven(signal="accepted", value=1.0),
        key="t",
        envelope=Envelope("feedback-1", FeedbackGiven.TYPE, "/test", 1, "t"),
    )
    bad = Message(b"t", b'{"signal": ', good.headers)
    async with open_producer(kafka) as producer:
        for topic, message in ((FEEDBACK, bad), (EVENTS, Message(b"t", b"\xff", [])), (FEEDBACK, good)):
            await (await send(producer, topic, message))
    async with running_sink(SinkConfig(kafka, clickhouse, group="bad")):
        await until(clickhouse, "SELECT count() FROM feedback", 1)
        await until(clickhouse, "SELECT count() FROM dead_letters", 1)
    dead_letters = [decode_payload(DeadLetter.TYPE, record.value) async for record in read_to_end(kafka, DEAD_LETTERS)]
    (letter,) = {letter.model_dump_json(): letter for letter in dead_letters}.values()
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.error) == ("feedback", DeadLetterError.BAD_JSON)
    client = open_client(clickhouse)
    row = client.query("SELECT bad_topic, base64Decode(value_base64) FROM dead_letters FINAL").result_rows
    assert row == [("feedback", '{"signal": ')]


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_the_lag_of_every_group_is_measured(kafka: str, clickhouse: str) -> None:
    await send_events(kafka, "lag", 50)
    config = SinkConfig(kafka, clickhouse, group="measured", lag_interval_s=0.1)
    query = "SELECT count() FROM lag WHERE consumer_group = 'measured' AND topic = 'events' AND records = 0"
    async with running_sink(config):
        await until(clickhouse, query, 4)
        await until(clickhouse, "SELECT count() FROM sinks FINAL WHERE sink LIKE 'measured/%'", 1)


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_a_record_that_cannot_be_stored_is_a_dead_letter_and_the_rest_of_its_batch_is_stored(
    kafka: str, clickhouse: str
) -> None:
    client = open_client(clickhouse)
    await asyncio.to_thread(ensure_tables, client)
    # An operator may add such a constraint to a table; only the server knows that a row breaks it.
    client.command("ALTER TABLE events ADD CONSTRAINT named CHECK tool != 'forbidden'")
    too_large = Reward(
        trajectory_id="r", trajectory=Reference(partition=0, offset=0), spec="s@1", total=1.0, ended_ms=1,
        sampled_tokens=2**40,
    )  # fmt: skip
    fits = too_large.model_copy(update={"sampled_tokens": 7})
    async with open_producer(kafka) as producer:
        for number in range(200):
            tool = "forbidden" if number in (0, 17, 18, 199) else "allowed"
            message = event("unstorable-1", number, tool)
            await (await send(producer, EVENTS, message))
        for number, reward in enumerate((fits, too_large, fits)):
            message = encode(reward, key="r", envelope=Envelope(f"reward-{number}", Reward.TYPE, "/test", 1, "r"))
            await (await send(producer, REWARDS, message))
    sent = {
        (record.topic, record.partition, record.offset): record.value
        for topic in (EVENTS, REWARDS)
        async for record in read_to_end(kafka, topic)
        if b'"forbidden"' in (record.value or b"") or b"1099511627776" in (record.value or b"")
    }
    assert len(sent) == 5
    try:
        for group in ("unstorable", "unstorable-again"):
            # Both processes write the same batches: tokens deduplicate the second, and dead letters have the same IDs.
            async with running_sink(SinkConfig(kafka, clickhouse, group=group, batch_records=64)):
                await until(clickhouse, events_of("unstorable", "uniqExact(seq)"), 196)
                await until(clickhouse, "SELECT uniqExact(bad_offset) FROM dead_letters WHERE error = 'unstorable'", 5)
    finally:
        client.command("ALTER TABLE events DROP CONSTRAINT named")
    assert count(clickhouse, events_of("unstorable", final="FINAL")) == 196
    assert count(clickhouse, "SELECT uniqExact(id) FROM rewards WHERE trajectory_id = 'r'") == 2
    dead_letters: dict[str, DeadLetter] = {}
    async for record in read_to_end(kafka, DEAD_LETTERS):
        letter = decode_payload(DeadLetter.TYPE, record.value)
        assert isinstance(letter, DeadLetter)
        if letter.error is DeadLetterError.UNSTORABLE:
            dead_letters[dict(record.headers)["ce_id"].decode()] = letter
    assert {
        (letter.topic, letter.partition, letter.offset): original_bytes(letter) for letter in dead_letters.values()
    } == sent
    alerts = [decode_payload(Alert.TYPE, record.value) async for record in read_to_end(kafka, ALERTS)]
    assert {alert.kind for alert in alerts if isinstance(alert, Alert)} == {"record_unstorable"}
    # The processors have these records; sent again they would be duplicates.
    box = await read_dead_letters(kafka, lambda dead, _: dead.error is DeadLetterError.UNSTORABLE)
    plans = await plan_redrive(kafka, box.entries)
    assert len(plans) == 5
    assert all(isinstance(plan, Refusal) and "would count twice" in plan.why for plan in plans)


@pytest.mark.kafka
@pytest.mark.clickhouse
async def test_unread_expired_records_raise_one_alert(kafka: str, clickhouse: str) -> None:
    place = TopicPartition(FEEDBACK.name, 1)
    async with open_producer(kafka) as producer:
        for number in range(10):
            await (await send(producer, FEEDBACK, event(f"expired-{number}", 0), partition=1))
    async with open_consumer(kafka, group="expired") as consumer:
        consumer.assign([place])
        await consumer.commit({place: 3})
    async with open_admin(kafka) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=8)})
    for _ in range(2):
        async with running_sink(SinkConfig(kafka, clickhouse, group="expired")):
            await until(clickhouse, "SELECT count() FROM alerts WHERE kind = 'records_expired'", 1)
    alerts = [record async for record in read_to_end(kafka, ALERTS) if b"records_expired" in (record.value or b"")]
    assert len({dict(record.headers)["ce_id"] for record in alerts}) == 1
    alert = decode_payload(Alert.TYPE, alerts[0].value)
    assert isinstance(alert, Alert)
    assert alert.details == {"topic": "feedback", "partition": 1, "committed": 3, "begin": 8, "unread": 5}


async def test_a_table_of_another_type_makes_no_dead_letter() -> None:
    """The rows are not at fault: the sink ends with the fix in its message, and resumes once that is done."""
    stop = asyncio.Event()
    database = RetryingClient("http://127.0.0.1:1", secrets=None, stop=stop, retry_most_s=0.05)
    asked: list[object] = []

    async def call(function: object, *arguments: object) -> Any:
        asked.append(function)
        if function is insert_rows:
            raise DatabaseError("type mismatch", code=53)
        raise ValueError("column seq of table events is String")

    database._counted = call  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match="column seq of table events"):
        await database.insert(EVENTS_TABLE, arrow_table(EVENTS_TABLE, [{"seq": 1}]), "t")
    assert len(asked) == 2


@pytest.mark.clickhouse
async def test_rows_of_which_an_earlier_attempt_left_nothing_but_the_token_are_inserted_again(
    clickhouse: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after ClickHouse was killed between recording the token and renaming the part."""
    database = RetryingClient(clickhouse, secrets=None, stop=asyncio.Event(), retry_most_s=0.1)
    await database.prepare()
    place = {"logged_at": int(time.time() * 1000), "partition": 1}
    rows = arrow_table(EVENTS_TABLE, [{"id_sent": f"t-{n}", "offset": 10**9 + n, **place} for n in range(10)])
    client, stored = open_client(clickhouse), "SELECT count() FROM events WHERE offset >= 1000000000"

    def forget() -> None:
        client.command("ALTER TABLE events DELETE WHERE offset >= 1000000000", settings={"mutations_sync": 1})

    for is_repeated in (False, True, True):
        await database.insert(EVENTS_TABLE, rows, "left", is_repeated=is_repeated)
        assert client.query(stored).result_rows == [(10,)], "stored once"
    forget()
    assert client.query(stored).result_rows == [(0,)]
    await database.insert(EVENTS_TABLE, rows, "left")
    assert client.query(stored).result_rows == [(0,)], "its token is known, and nobody has reason to look"
    for _ in range(2):
        await database.insert(EVENTS_TABLE, rows, "left", is_repeated=True)
        assert client.query(stored).result_rows == [(10,)]
    assert caplog.text.count("has none of the 10 rows") == 1
    failed = list[str]()

    def fails_once(*arguments: Any) -> None:
        insert_rows(*arguments)
        if not failed:
            forget()
            failed.append("the disk is full")
            raise ClickHouseError(failed[0])

    forget()
    monkeypatch.setattr(database_module, "insert", fails_once)
    await database.insert(EVENTS_TABLE, rows, "failed")
    assert client.query(stored).result_rows == [(10,)]
    assert caplog.text.count("has none of the 10 rows") == 2
    forget()
    await database.close()
    client.close()


@pytest.mark.clickhouse
def test_inserts_are_compressed_on_loopback_too(clickhouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    sizes, original = list[int](), client.raw_insert

    def counted(table: str, columns: object, block: Any, *others: Any, **named: Any) -> Any:
        sizes.append(len(block))
        return original(table, columns, block, *others, **named)

    monkeypatch.setattr(client, "raw_insert", counted)
    text = "the same words " * 100
    rows = [
        {"id_sent": f"packed-{number}", "payload": text, "logged_at": int(time.time() * 1000)} for number in range(1000)
    ]
    insert_rows(client, EVENTS_TABLE, arrow_table(EVENTS_TABLE, rows), "packed")
    assert client.query("SELECT count() FROM events WHERE payload = {t:String}", {"t": text}).result_rows == [(1000,)]
    assert sizes[0] < 1000 * len(text) / 5


def test_a_value_that_does_not_fit_its_column_is_unstorable_alone() -> None:
    batch = convert([stored(event("t", 1), 0), stored(event("t", 2**40), 1), stored(event("t", 3), 2)])
    ((table, rows),) = batch.tables
    assert (table.name, rows.column("seq").to_pylist()) == ("events", [1, 3])
    ((record, error),) = batch.unstorable
    assert (record.offset, error.error, batch.unreadable) == (1, DeadLetterError.UNSTORABLE, [])


def test_every_kind_of_damage_is_unreadable() -> None:
    good = event("t", 1)
    damaged = [
        Message(b"", b"{", good.headers),
        Message(b"", b"{}", good.headers),
        Message(b"", good.value, []),
        Message(b"", good.value, [(name, b"x" if name == "ce_type" else value) for name, value in good.headers]),
    ]
    batch = convert([stored(message) for message in damaged] + [stored(good)])
    assert [error.error for _, error in batch.unreadable] == [
        DeadLetterError.BAD_JSON,
        DeadLetterError.INVALID,
        DeadLetterError.BAD_HEADERS,
        DeadLetterError.UNKNOWN_TYPE,
    ]
    assert all(isinstance(error, UnreadableRecord) for _, error in batch.unreadable)
    assert [rows.num_rows for _, rows in batch.tables] == [1]


def test_converting_twice_gives_the_same_bytes() -> None:
    records = [stored(event("t", sequence), sequence) for sequence in range(20)]
    (first,), (second,) = convert(records).tables, convert(records).tables
    assert first[1].equals(second[1])


async def test_waiting_for_clickhouse_ends_at_shutdown() -> None:
    stop = asyncio.Event()
    client = RetryingClient(f"http://{HOST}:{free_port()}", secrets=None, stop=stop, retry_most_s=0.05)
    waiting = asyncio.create_task(client.prepare())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    stop.set()
    with pytest.raises(Stopped):
        await waiting


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"batch_records": 0}, "batch_records must be a whole number from 1 to 1048576, not 0"),
        ({"batch_records": 64.5}, "batch_records must be a whole number from 1 to 1048576, not 64.5"),
        ({"batch_records": 10**9}, "batch_records must be a whole number from 1 to 1048576, not 1000000000"),
        ({"batch_records": True}, "batch_records must be a whole number from 1 to 1048576, not True"),
        ({"concurrent_inserts": 1.5}, "concurrent_inserts must be a whole number from 1 to 64, not 1.5"),
        ({"group": " "}, "group must not be empty"),
        ({"retry_most_s": -1.0}, "retry_most_s must be positive, not -1.0"),
        ({"linger_s": float("nan")}, "linger_s must be at most 3600 seconds, not nan"),
        ({"linger_s": float("inf")}, "linger_s must be at most 3600 seconds, not inf"),
        ({"pause_share": -0.1}, "pause_share must be from 0 to 10, not -0.1"),
        ({"pause_share": float("nan")}, "pause_share must be from 0 to 10, not nan"),
        ({"lag_interval_s": 3601.0}, "lag_interval_s must be at most 3600 seconds, not 3601.0"),
    ],
)
def test_an_invalid_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SinkConfig("k", "c", **settings)
