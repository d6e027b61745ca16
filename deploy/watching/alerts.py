"""Reads the monitors' alerts from Kafka, and writes acknowledgements to it."""

import time

from headrace.deploy.kafka.run import run_with_kafka
from headrace.deploy.watching.episodes import EpisodeStatus, acknowledgement, episodes
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import AdmissionOrder, Alert
from headrace.schemas.records.watch import LevelAccepted
from headrace.schemas.topics import ALERTS, OBSERVATIONS, Topic
from headrace.schemas.wire import Message, UnreadableRecord, decode, record_message
from headrace.streams.processors.watch import episode_message

SOURCE = "/headrace/watch"
"""``ce_source`` of what this command writes."""
CHECK_EVERY_S = 0.5
"""Pause between two looks whether an alert has ended, in seconds."""


def read_episodes(bootstrap: str) -> list[EpisodeStatus]:
    """Returns the episodes in ``alerts`` at ``bootstrap`` (Kafka, ``host:port``)."""
    return run_with_kafka(bootstrap, lambda: _read_episodes(bootstrap))


async def _read_episodes(bootstrap: str) -> list[EpisodeStatus]:
    alerts = []
    async for record in read_to_end(bootstrap, ALERTS):
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            continue  # the sink has made a dead letter of it
        if isinstance(payload, Alert) and payload.episode is not None:
            alerts.append(payload)
    return episodes(alerts)


def acknowledge(
    bootstrap: str, status: EpisodeStatus, by: str, admission: AdmissionOrder = AdmissionOrder.NONE
) -> None:
    """Write that ``by`` has acknowledged an episode; with ``RESUME`` also that admission is to be resumed."""
    message = episode_message(acknowledgement(status, by, admission), time.time_ns() // 1_000_000, source=SOURCE)
    _write(bootstrap, ALERTS, message)


def accept(bootstrap: str, level: LevelAccepted) -> None:
    """Write that a level is accepted. The monitor ends its alert when it has read that: see :func:`has_ended`."""
    now = time.time_ns() // 1_000_000
    message = record_message(level, id=uuid7(now), key=level.run, source=SOURCE, time_ms=now, subject=level.run)
    _write(bootstrap, OBSERVATIONS, message)


def has_ended(bootstrap: str, id: str, *, within_s: float) -> bool:
    """Returns whether the episode ``id`` ends within ``within_s`` seconds, and waits for that."""
    until = time.monotonic() + within_s
    while not (ended := any(each.episode.id == id and not each.is_open for each in read_episodes(bootstrap))):
        if time.monotonic() > until:
            break
        time.sleep(CHECK_EVERY_S)
    return ended


def _write(bootstrap: str, topic: Topic, message: Message) -> None:
    async def write() -> None:
        async with open_producer(bootstrap) as producer:
            await (await send(producer, topic, message))

    run_with_kafka(bootstrap, write)
