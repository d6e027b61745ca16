"""Apache Kafka as one KRaft node on the loopback interface: formats, starts, waits until ready.

A broker keeps its port, its node id and its data folder, so it can be restarted on its data.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.java import JAVA_ENVIRONMENT, find_java
from headrace.deploy.system.children import Command, end_of, run_to_end
from headrace.deploy.system.ports import HOST
from headrace.schemas.kafka.address import kafka_address

_OFFSETS_RETENTION_MINUTES = 365 * 24 * 60
"""A stack that was stopped for a month must still find its committed offsets: the default is a week."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The ports, folder and limits of a broker."""

    folder: Path
    """Folder of its settings and log segments."""
    port: int
    """Port for clients."""
    controller_port: int
    """Port of the KRaft controller."""
    max_message_bytes: int
    """Largest record batch that it accepts."""
    heap_mb: int = 512
    """Java heap in MiB."""

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"


def server_properties(broker: Broker) -> str:
    """Returns the broker's settings as a Kafka properties file."""
    replicated = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://{broker.bootstrap},CONTROLLER://{HOST}:{broker.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{broker.bootstrap}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{HOST}:{broker.controller_port}",
        "log.dirs": broker.folder / "log",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        # A broker that was killed can register again only after its previous session has expired.
        "broker.session.timeout.ms": 4_000,
        "broker.heartbeat.interval.ms": 500,
        "message.max.bytes": broker.max_message_bytes,
        "offsets.retention.minutes": _OFFSETS_RETENTION_MINUTES,
        **{f"{topic}.replication.factor": 1 for topic in replicated},
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # The controller writes a record each half second, only to tell other nodes that it is there.
        "metadata.max.idle.interval.ms": 10_000,
        # For one node and few groups, the default of fifty partitions would only slow down the start.
        **{f"{topic}.num.partitions": 8 for topic in replicated},
        # The log cleaner's default buffer would take a quarter of this heap.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
    return "".join(f"{name}={_property(str(value))}\n" for name, value in settings.items())


def _property(value: str) -> str:
    """Returns a value in the encoding of Java properties files: ASCII, with escapes for all other characters."""
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)


async def prepare_broker(broker: Broker, libs: Path, report: Callable[[str], None] = lambda _: None) -> Command:
    """Write the settings and format the folder if it is new; returns the command that starts the broker.

    ``report`` is called with a phrase on the Java that is used. Raises :class:`StackError` if there is none, or the
    folder cannot be used.
    """
    if "," in str(broker.folder):
        raise StackError(
            f"Kafka does not support a comma in a folder's name, but {broker.folder} has one: choose another folder "
            "with --data (HEADRACE_DATA)."
        )
    broker.folder.mkdir(parents=True, exist_ok=True)
    properties = broker.folder / "server.properties"
    properties.write_text(server_properties(broker))
    java = find_java()
    report(java.about)
    if not (broker.folder / "log" / "meta.properties").exists():
        log = broker.folder / "format.log"
        log.unlink(missing_ok=True)  # From an earlier attempt.
        argv = (*_jvm(java.program, libs, 128), "kafka.tools.StorageTool", "format", "--standalone")
        format_folder = Command((*argv, "-t", _cluster_id(), "-c", str(properties)), JAVA_ENVIRONMENT)
        if await run_to_end(format_folder, log) != 0:
            raise StackError(f"Kafka could not format {broker.folder} (setting HEADRACE_DATA):\n{end_of(log)}")
    return Command((*_jvm(java.program, libs, broker.heap_mb), "kafka.Kafka", str(properties)), JAVA_ENVIRONMENT)


LISTENS_S = 10.0
"""Seconds within which a broker's address must accept a connection."""

ANSWERS_S = 30.0
"""Seconds for an answer after that: a broker on a busy machine accepts connections long before it answers."""


async def answers_within(bootstrap: str, seconds: float) -> bool:
    """Whether the broker answers a metadata request within ``seconds`` seconds, with at least one broker in it."""
    from aiokafka.client import AIOKafkaClient
    from aiokafka.errors import KafkaError

    from headrace.schemas.kafka.security import with_security

    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=5_000, **with_security({}))
    try:
        async with asyncio.timeout(seconds):
            await client.bootstrap()
        return bool(client.cluster.brokers())
    except (KafkaError, OSError):  # TimeoutError is an OSError.
        return False
    finally:
        with suppress(KafkaError, OSError):
            await client.close()


async def wait_until_answers(bootstrap: str, listens_s: float | None = None) -> None:
    """Return once the broker answers a metadata request with at least one broker in it.

    Raises :class:`StackError` if nothing listens at the address within ``listens_s`` seconds (default:
    :data:`LISTENS_S`), or the server there does not answer within another :data:`ANSWERS_S`.
    """
    from headrace.schemas.kafka.refused import AccessRefused, check_access
    from headrace.schemas.kafka.security import process_security

    try:
        kafka_address(bootstrap)
    except ValueError as error:
        raise StackError(f"HEADRACE_KAFKA is {bootstrap!r}, {error}.") from error
    brokers = [each.strip().rpartition(":") for each in bootstrap.split(",")]

    async def listens() -> None:
        while True:
            for host, _, port in brokers:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                    writer.close()
                    return
            await asyncio.sleep(0.1)

    async def answers() -> None:
        while not await answers_within(bootstrap, ANSWERS_S):
            await check_access(bootstrap)
            await asyncio.sleep(0.2)

    try:
        # First with plain sockets: the Kafka client logs every refused connection as an error.
        within_s = LISTENS_S if listens_s is None else listens_s
        async with asyncio.timeout(within_s):
            await listens()
        within_s = ANSWERS_S
        async with asyncio.timeout(within_s):
            await answers()
    except AccessRefused as error:
        raise StackError(error.args[0]) from error
    except TimeoutError as error:
        raise StackError(
            f"The Kafka broker at {bootstrap} (setting HEADRACE_KAFKA, or --kafka) did not answer a metadata "
            f"request within {within_s:g} s: check the address, that the broker runs, and that "
            f"HEADRACE_KAFKA_SECURITY_PROTOCOL ({process_security().security_protocol}) is that of its listener. "
            "Without an address, commands use the stack on --data, and `headrace up` starts a broker."
        ) from error


def _jvm(program: str, libs: Path, heap_mb: int) -> tuple[str, ...]:
    return (
        program,
        f"-Xmx{heap_mb}m",
        "-XX:MaxGCPauseMillis=20",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        "-Dsun.jnu.encoding=UTF-8",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-cp",
        f"{libs}{os.sep}*",
    )


def _cluster_id() -> str:
    """Returns a random UUID in Kafka's form: 22 characters of URL-safe base64, without a leading dash, which would be
    parsed as an option."""
    while (text := base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")).startswith("-"):
        pass
    return text
