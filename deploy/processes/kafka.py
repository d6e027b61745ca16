"""Kafka, started by the stack or external: prepares it, waits until it answers and creates the topics."""

import logging
from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process, ReportStatus
from headrace.deploy.system.children import Command
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings

_log = logging.getLogger(__name__)


def _check(settings: "Settings") -> None:
    if secured := settings.secures_kafka:
        raise StackError(
            f"{', '.join(secured)}: set for an external Kafka, but the stack starts one, which listens on the loopback "
            "interface without TLS and SASL. Set HEADRACE_KAFKA to the address of yours, or unset these settings."
        )


async def _command(settings: "Settings", report: ReportStatus) -> Command:
    from headrace.deploy.kafka.broker import Broker, prepare_broker
    from headrace.deploy.kafka.jars import kafka_jars
    from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES

    assert settings.kafka_port is not None  # resolve() chose one.
    assert settings.kafka_controller_port is not None
    broker = Broker(
        folder=settings.data / "kafka",
        port=settings.kafka_port,
        controller_port=settings.kafka_controller_port,
        max_message_bytes=MAX_REQUEST_BYTES,
        heap_mb=settings.kafka_heap_mb,
    )
    return await prepare_broker(broker, await kafka_jars(settings.cache, report), report)


async def _answers(settings: "Settings") -> None:
    from headrace.deploy.kafka.broker import wait_until_answers
    from headrace.schemas.kafka.topic_clock import set_clocks

    assert settings.kafka is not None
    await wait_until_answers(settings.kafka, settings.start_timeout_s)
    await _create_topics(settings.kafka)
    await set_clocks(settings.kafka)  # Topics that an older version created lack the setting.


async def _external(settings: "Settings") -> None:
    from headrace.deploy.kafka.broker import wait_until_answers

    assert settings.kafka is not None
    await wait_until_answers(settings.kafka)
    await _create_topics(settings.kafka)
    await _warn_of_short_offsets_retention(settings.kafka)


async def _warn_of_short_offsets_retention(bootstrap: str) -> None:
    """Log a warning if an external Kafka deletes committed offsets sooner than the events that they belong to."""
    from aiokafka.errors import KafkaError

    from headrace.schemas.kafka.topic_clock import OFFSETS_RETENTION, offsets_retention_minutes
    from headrace.schemas.topics import EVENTS

    wanted = EVENTS.retention_ms // 60_000
    try:
        found = await offsets_retention_minutes(bootstrap)
    except KafkaError as error:
        _log.warning("%s of the Kafka at %s could not be read: %s", OFFSETS_RETENTION, bootstrap, error)
        return
    if found is not None and found < wanted:
        _log.warning(
            "the Kafka at %s deletes the committed offsets of a process that is stopped for %.3g days (%s=%d), but "
            "keeps events for %.3g days: a stack that was stopped for longer must read all of them again. Set %s=%d in "
            "its server.properties.",
            bootstrap, found / 1440, OFFSETS_RETENTION, found, wanted / 1440, OFFSETS_RETENTION, wanted,
        )  # fmt: skip


async def _create_topics(bootstrap: str) -> None:
    from aiokafka.errors import KafkaError

    from headrace.deploy.configuration.settings import PREFIX
    from headrace.schemas.kafka.topic_creation import create_topics

    try:
        await create_topics(bootstrap)
    except KafkaError as error:
        raise StackError(
            f"The Kafka at {bootstrap} ({PREFIX}KAFKA) refused to create the topics: {error}. Create them yourself; "
            "`headrace topics` prints their settings."
        ) from error


KAFKA = Process(
    "kafka",
    "the log",
    check=_check,
    command=_command,
    answers=_answers,
    ports=("kafka_port", "kafka_controller_port"),
    url=HOST + ":{port}",
    external=_external,
    memory_mb=600,
)
