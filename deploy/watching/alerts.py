"""Reads the monitors' alerts from Kafka, and writes acknowledgements and planted observations to it."""

import time

from headrace.deploy.kafka.run import run_with_kafka
from headrace.deploy.watching.episodes import EpisodeStatus, acknowledgement, episodes
from headrace.deploy.watching.plant import Plan, planted_steps
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import AdmissionOrder, Alert
from headrace.schemas.records.watch import Observation
from headrace.schemas.topics import ALERTS, OBSERVATIONS
from headrace.schemas.wire import UnreadableRecord, decode, record_message
from headrace.streams.processors.watch import episode_message

SOURCE = "/headrace/watch"
"""``ce_source`` of what this command writes."""


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

    async def write() -> None:
        async with open_producer(bootstrap) as producer:
            await (await send(producer, ALERTS, message))

    run_with_kafka(bootstrap, write)


def send_planted(bootstrap: str, plan: Plan) -> tuple[str, int]:
    """Write the observations of ``plan`` to Kafka, under a run of their own. Returns its name and their number."""
    begin_ms = time.time_ns() // 1_000_000
    run = f"{plan.run}-{begin_ms}"

    async def write() -> int:
        count = 0
        async with open_producer(bootstrap) as producer:
            for step in planted_steps(plan, begin_ms):
                sent = []
                for observation in step.observations:
                    name = observation.trajectory_id
                    message = record_message(
                        observation.model_copy(update={"run": run}),
                        id=derived_id(Observation.TYPE, run, name, observation.of),
                        key=name,
                        source=SOURCE,
                        time_ms=begin_ms,
                        subject=name,
                    )
                    sent.append(await send(producer, OBSERVATIONS, message))
                for each in sent:
                    await each
                count += len(sent)
        return count

    return run, run_with_kafka(bootstrap, write)
