"""Processes of headrace and a real broker that requires TLS and a password, or TLS and a client's certificate."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError

from headrace.agents.counters import SdkCounters
from headrace.agents.gateway.journal import Journal
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.left_behind import send_left_behind
from headrace.agents.sdk import Headrace
from headrace.agents.sender_config import SenderConfig
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import SpooledRecord, cluster_fingerprint
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.kafka.broker import answers_within, wait_until_answers
from headrace.deploy.kafka.run import run_with_kafka
from headrace.deploy.processes.kafka import KAFKA
from headrace.deploy.system.children import Child, Command, end_of, run_to_end
from headrace.deploy.system.notify import ReadySocket
from headrace.schemas.events import ToolCalled
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_admin, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.refused import AccessRefused
from headrace.schemas.kafka.security import with_security
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.kafka.topic_ids import topic_ids
from headrace.schemas.topics import EVENTS, TOPICS, TRAINING
from headrace.streams.reading.partition_reader import open_reader
from headrace.streams.replay.delivery import open_delivery
from tests.certificates import make_certificates
from tests.deploy.kafka.secured_broker import PASSWORD, SecuredBroker, secured_broker
from tests.streams.builders import session

pytestmark = pytest.mark.kafka
WAYS = ("PLAIN", "SCRAM-SHA-512", "certificate")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


def environment_of(broker: SecuredBroker, way: str) -> dict[str, str]:
    return broker.certificate() if way == "certificate" else broker.login(way)


def enter(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> str:
    """Set the environment; returns the broker's address."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment["HEADRACE_KAFKA"]


async def subjects(bootstrap: str) -> set[str]:
    """Trajectories in ``events``."""
    return {dict(record.headers)["ce_subject"].decode() async for record in read_to_end(bootstrap, EVENTS)}


async def until_sent(bootstrap: str, name: str) -> None:
    async with asyncio.timeout(60):
        while name not in await subjects(bootstrap):  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_connects(
    broker: SecuredBroker, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bootstrap = enter(monkeypatch, environment_of(broker, way))
    assert KAFKA.external is not None
    await KAFKA.external(load_settings())  # waits for it, and creates the topics
    assert await answers_within(bootstrap, 10)
    async with open_admin(bootstrap) as admin:
        assert {topic.name for topic in TOPICS} <= set(await admin.list_topics())
    assert [*await topic_ids(bootstrap, [EVENTS.name])] == [EVENTS.name]

    async with open_producer(bootstrap) as producer:
        (first, *_) = session(f"producer-{way}", "ask")
        placed = await producer.send_and_wait(EVENTS.name, first.value, first.key, headers=list(first.headers))
    record = OutgoingRecord(EVENTS.name, b"k", first.value, list(first.headers), 1, placed.partition)
    async with open_delivery(bootstrap) as delivery:
        await delivery.send([record])
    async with open_reader(bootstrap, EVENTS.name, placed.partition, placed.offset) as reader, asyncio.timeout(60):
        offsets: list[int] = []
        while len(offsets) < 2:
            offsets += [each.offset for each in reader.read()]
            await asyncio.sleep(0.05)
    assert offsets[0] == placed.offset

    sdk = Headrace(bootstrap, source="test", spool_folder=tmp_path / "spool")
    with sdk.trajectory(task_id="q", agent="a", trajectory_id=f"sdk-{way}"):
        pass
    assert await asyncio.to_thread(sdk.flush, 60)
    await asyncio.to_thread(sdk.close)
    await until_sent(bootstrap, f"sdk-{way}")

    spool = Spool(tmp_path / "journal", 1 << 26, cluster_fingerprint("journal"), print)
    journal = Journal(spool, bootstrap, {}, SdkCounters(), source="/test", new_id=uuid7)
    async with asyncio.TaskGroup() as tasks:
        journal.start(tasks)
        made = TrajectoryEvent(f"journal-{way}", 0, ToolCalled(call_id="c", tool="t", arguments={}))
        assert await journal.record([made], 1_763_000_000_000)
        await until_sent(bootstrap, f"journal-{way}")
        await journal.close(10)


async def test_what_is_left_on_disk_is_sent(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bootstrap = enter(monkeypatch, broker.login("SCRAM-SHA-512"))
    assert KAFKA.external is not None
    await KAFKA.external(load_settings())
    config = SenderConfig(bootstrap, "test", spool_folder=tmp_path / "spool")
    assert config.spool_folder is not None
    spool = Spool(config.spool_folder, config.spool_bytes, config.cluster, print)
    (first, *_) = session("left-behind", "ask")
    assert spool.append([SpooledRecord(EVENTS.name, first.key, first.value, tuple(first.headers))])
    spool.close()
    assert await send_left_behind(config) == 1
    assert "left-behind" in await subjects(bootstrap)


async def test_workers_make_a_training_group(broker: SecuredBroker, tmp_path: Path) -> None:
    """Assemble by aiokafka and librdkafka, score and group by Faust, each a process that knows only its environment."""
    environment = broker.login("SCRAM-SHA-512")
    argv = (sys.executable, "-m", "headrace.deploy.cli", "topics", "--create")
    assert await run_to_end(Command(argv, environment), tmp_path / "topics.log") == 0, end_of(tmp_path / "topics.log")
    children = []
    try:
        for name in ("assemble", "workers"):
            with ReadySocket() as ready_socket:
                options = {"workers": {"processors": ["score", "group"]}} if name == "workers" else {}
                own = {"HEADRACE_DATA": str(tmp_path / name), "HEADRACE_OPTIONS": json.dumps(options)}
                command = Command(
                    (sys.executable, "-m", "headrace.deploy.cli", "worker", name),
                    {**environment, **ready_socket.env, **own},
                )
                children.append(Child(command, tmp_path / f"{name}.log"))
                try:
                    await asyncio.wait_for(ready_socket.ready(), 90)
                except TimeoutError as error:
                    raise AssertionError(end_of(children[-1].log, 40)) from error
        # The broker's own listener: what a client without TLS writes and reads there.
        async with open_producer(broker.plaintext) as producer:
            for number in range(2):
                made = session(f"s-{number}", "ask", start={"group_id": "s", "group_size": 2}, outcome=float(number))
                for record in made:
                    await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=list(record.headers))
        found: list[bytes] = []
        async with asyncio.timeout(120):
            while not found:
                await asyncio.sleep(0.5)
                found = [each.value or b"" async for each in read_to_end(broker.plaintext, TRAINING, decided=True)]
        for command in (("tail", "training"), ("replay", "again", "--stage", "events"), ("settings",)):
            argv, log = (sys.executable, "-m", "headrace.deploy.cli", *command), tmp_path / f"{command[0]}.log"
            assert await run_to_end(Command(argv, environment), log) == 0, end_of(log, 40)
        again = replace(TRAINING, name=f"replay.again.{TRAINING.name}")
        replayed = [each.value or b"" async for each in read_to_end(broker.plaintext, again)]
    finally:
        for child in children:
            child.kill()
    assert b"s-0" in found[0]
    assert b"s-1" in found[0]
    assert any(b"s-0" in value for value in replayed)
    assert "group.formed          s " in (tmp_path / "tail.log").read_text()
    assert "HEADRACE_KAFKA_SASL_PASSWORD=***" in (tmp_path / "settings.log").read_text()
    for log in tmp_path.glob("*.log"):
        assert PASSWORD not in log.read_text()


@pytest.mark.clickhouse
async def test_the_sink_stores_what_is_on_the_log(broker: SecuredBroker, clickhouse: str, tmp_path: Path) -> None:
    environment = broker.certificate() | {"HEADRACE_CLICKHOUSE": clickhouse, "HEADRACE_DATA": str(tmp_path)}
    await create_topics(broker.plaintext)
    async with open_producer(broker.plaintext) as producer:
        made = session("stored", "ask")
        for record in made:
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=list(record.headers))
    with ReadySocket() as ready_socket:
        argv = (sys.executable, "-m", "headrace.deploy.cli", "worker", "sink")
        sink = Child(Command(argv, environment | ready_socket.env), tmp_path / "sink.log")
        try:
            await asyncio.wait_for(ready_socket.ready(), 90)
            query = "SELECT 'rows ' || toString(count()) FROM events WHERE trajectory_id = 'stored'"
            argv, log = (sys.executable, "-m", "headrace.deploy.cli", "query", query), tmp_path / "query.log"
            async with asyncio.timeout(60):
                stored = ""
                while f"rows {len(made)} " not in stored:
                    await asyncio.sleep(0.5)
                    assert await run_to_end(Command(argv, environment), log) == 0
                    stored = log.read_text()
        except TimeoutError as error:
            raise AssertionError(end_of(sink.log) + end_of(tmp_path / "query.log")) from error
        finally:
            sink.kill()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_an_error_that_names_the_setting(
    broker: SecuredBroker, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = enter(monkeypatch, broker.login(mechanism, "a-wrong-password"))
    named = rf"refused the user 'worker' with {mechanism}.*HEADRACE_KAFKA_SASL_PASSWORD"
    with pytest.raises(AccessRefused, match=named) as raised:
        async with open_producer(bootstrap):
            pass
    assert isinstance(raised.value, KafkaConnectionError)  # as before, for who retries
    assert "a-wrong-password" not in str(raised.value)
    async with asyncio.timeout(20):
        with pytest.raises(StackError, match=named):
            await wait_until_answers(bootstrap)


def test_the_sdk_logs_the_setting_and_its_own_options_win(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    asyncio.run(create_topics(broker.plaintext))
    caplog.set_level(logging.WARNING, "headrace")
    with monkeypatch.context() as patch:
        enter(patch, broker.login("PLAIN"))
        right = with_security({})
    bootstrap = enter(monkeypatch, broker.login("PLAIN", "a-wrong-password"))
    for name, options in (("wrong", {}), ("right", right)):
        sdk = Headrace(bootstrap, source="test", spool_folder=tmp_path / name, kafka_options=options)
        with sdk.trajectory(task_id="q", agent="a"):
            pass
        assert sdk.flush(60 if options else 5) == bool(options)
        sdk.close()
    logged = [record.getMessage() for record in caplog.records if "no connection to Kafka" in record.getMessage()]
    assert len(logged) == 1
    assert "refused the user 'worker'" in logged[0]
    assert "HEADRACE_KAFKA_SASL_PASSWORD" in logged[0]
    assert "a-wrong-password" not in caplog.text


def test_a_command_with_a_wrong_password_ends_at_once(broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap = enter(monkeypatch, broker.login("PLAIN", "a-wrong-password"))

    async def work() -> None:
        raise AssertionError("the broker did not answer")

    with pytest.raises(StackError, match=r"HEADRACE_KAFKA_SASL_PASSWORD"):
        run_with_kafka(bootstrap, work)


@pytest.mark.parametrize("name", ["assemble", "gateway"])
def test_a_worker_with_a_wrong_password_ends_at_once(broker: SecuredBroker, name: str, tmp_path: Path) -> None:
    options = {"gateway": {"engines": ["http://127.0.0.1:9"]}} if name == "gateway" else {}
    own = {
        "HEADRACE_DATA": str(tmp_path),
        "HEADRACE_GATEWAY_PORT": "1",
        "HEADRACE_OPTIONS": json.dumps(options),
    }
    command = Command(
        (sys.executable, "-m", "headrace.deploy.cli", "worker", name), broker.login("PLAIN", "a-wrong-password") | own
    )
    ended = subprocess.run(
        command.argv, env=command.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert f"{name}: The Kafka at {broker.sasl_ssl} refused the user 'worker' with PLAIN" in ended.stderr
    assert "HEADRACE_KAFKA_SASL_PASSWORD" in ended.stderr
    assert "a-wrong-password" not in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_other_refusals_name_their_settings(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def refusal(bootstrap: str, changed: dict[str, str]) -> str:
        with monkeypatch.context() as patch:
            enter(patch, broker.login("PLAIN") | changed)
            with pytest.raises(AccessRefused) as raised:
                async with open_admin(bootstrap):
                    pass
        return str(raised.value)

    other = str(make_certificates(tmp_path_factory.mktemp("other")).ca)
    said = await refusal(broker.sasl_ssl, {"HEADRACE_KAFKA_SSL_CA_FILE": other})
    assert "has a certificate that is not accepted" in said
    assert "HEADRACE_KAFKA_SSL_CA_FILE" in said
    said = await refusal(broker.sasl_ssl, {"HEADRACE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256"})
    assert "does not offer SCRAM-SHA-256" in said
    assert "HEADRACE_KAFKA_SASL_MECHANISM" in said
    names = ("SSL_CERTIFICATE_FILE", "SSL_KEY_FILE", "SSL_KEY_PASSWORD")
    tls = {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL", **{f"HEADRACE_KAFKA_{name}": "" for name in names}}
    login = {name: "" for name in broker.login("PLAIN") if "_SASL_" in name}
    said = await refusal(broker.ssl, login | tls)
    assert "does not accept the client's certificate" in said
    assert "HEADRACE_KAFKA_SSL_CERTIFICATE_FILE" in said
    plain = {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "HEADRACE_KAFKA_SSL_CA_FILE": ""}
    said = await refusal(broker.plaintext, plain)
    assert "takes no user and password at this address. Check HEADRACE_KAFKA_SECURITY_PROTOCOL" in said


async def test_a_broker_with_another_protocol_is_reported_with_the_setting(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.deploy.kafka.broker.ANSWERS_S", 2.0)
    with pytest.raises(StackError, match=r"HEADRACE_KAFKA_SECURITY_PROTOCOL \(PLAINTEXT\) is that of its listener"):
        await wait_until_answers(broker.sasl_ssl)
    enter(monkeypatch, broker.login("PLAIN"))
    with pytest.raises(StackError, match=r"HEADRACE_KAFKA_SECURITY_PROTOCOL"):
        await wait_until_answers(broker.plaintext)
