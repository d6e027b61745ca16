"""The broker: its settings, errors when it cannot be started, and a restart on its data."""

import socket
import subprocess
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings, load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.kafka.broker import Broker, _property, prepare_broker, server_properties, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.kafka.java import find_java
from headrace.deploy.processes.kafka import KAFKA
from headrace.deploy.system.children import Child
from headrace.deploy.system.ports import HOST, free_port, free_ports
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, TOPICS


def test_a_broker_listens_on_the_loopback_interface_only() -> None:
    lines = server_properties(Broker(Path("/data"), 1001, 1002, 5_000_000)).splitlines()
    listeners = next(line for line in lines if line.startswith("listeners="))
    assert listeners == "listeners=PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002"
    assert "message.max.bytes=5000000" in lines
    assert "auto.create.topics.enable=false" in lines
    assert not [line for line in lines if "0.0.0.0" in line]


async def test_a_broker_that_does_not_answer_is_reported_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.deploy.kafka.broker.ANSWERS_S", 1.0)
    with socket.create_server((HOST, 0)) as mute:
        address = f"{HOST}:{mute.getsockname()[1]}"
        with pytest.raises(
            StackError, match=rf"{address} \(setting HEADRACE_KAFKA, or --kafka\) did not answer.*Without an"
        ):
            await wait_until_answers(address)
    with pytest.raises(StackError, match=r"did not answer"):
        await wait_until_answers(f"{HOST}:{free_port()}", 0.5)
    with pytest.raises(StackError, match=r"HEADRACE_KAFKA is 'nonsense', which is not host:port"):
        await wait_until_answers("nonsense", 1.0)


@pytest.mark.kafka
async def test_a_broker_killed_with_sigkill_restarts_on_its_data(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "kafka", *free_ports(2), 5_000_000, heap_mb=256)
    libs = await kafka_jars(load_settings().cache)
    for generation in range(2):
        child = Child(await prepare_broker(broker, libs), tmp_path / "kafka.log")
        try:
            await wait_until_answers(broker.bootstrap, 60)
            await create_topics(broker.bootstrap, (EVENTS,))
            async with open_producer(broker.bootstrap) as producer:
                await producer.send_and_wait(EVENTS.name, b"%d" % generation, partition=0)
            assert [record.value async for record in read_to_end(broker.bootstrap, EVENTS)] == [
                b"%d" % number for number in range(generation + 1)
            ]
        finally:
            child.kill()


@pytest.mark.kafka
async def test_topics_are_created_on_an_external_kafka(kafka: str) -> None:
    assert KAFKA.external is not None
    await KAFKA.external(Settings(kafka=kafka))
    assert await create_topics(kafka, TOPICS) == []


@pytest.mark.kafka
async def test_the_largest_record_of_every_topic_is_accepted(kafka: str) -> None:
    async with open_producer(kafka, compression_type=None) as producer:
        for topic in TOPICS:
            # A compacted topic refuses records without a key.
            await producer.send_and_wait(topic.name, bytes(topic.max_bytes - 1024), key=b"key")


@pytest.mark.parametrize(
    "value", ["/plain/log", "/größer/日本/log", "/with space/a=b:c#d!/log", "/back\\slash/\n/log", "/🙂"]
)
def test_a_property_is_read_by_java_as_it_was_written(value: str, tmp_path: Path) -> None:
    shown = _property(value)
    assert shown.isascii()
    assert shown.isprintable()
    folder = tmp_path / "größer"
    folder.mkdir()
    (folder / "Read.java").write_text(
        "class Read { public static void main(String[] a) throws Exception { var p = new java.util.Properties();"
        " try (var in = new java.io.FileInputStream(a[0])) { p.load(in); }"
        ' System.out.write(p.getProperty("log.dirs").getBytes("UTF-8")); System.out.flush(); } }'
    )
    (folder / "made.properties").write_text(f"log.dirs={shown}\n")
    argv = [find_java().program, "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8", "Read.java", "made.properties"]
    done = subprocess.run(argv, capture_output=True, cwd=folder, check=True)
    assert done.stdout.decode() == value


async def test_a_folder_that_kafka_does_not_support_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"Kafka does not support a comma in a folder's name.*--data"):
        await prepare_broker(Broker(tmp_path / "a,b", 1, 2, 1000), tmp_path)
