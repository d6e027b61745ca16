"""Reads ``alerts`` and delivers each to every sink. Each has its own consumer group, so that none waits for another.

    alerts ──group headrace-notify-webhook──▶ webhook      committed once it is delivered
           ──group headrace-notify-mail─────▶ mail server

A sink that does not answer loses nothing: its offset stays, and at most one batch is in memory. A notice may arrive
twice, after a crash between delivery and commit; its id is the same. One that a sink refuses for good is logged, and
the next one follows.

Alertmanager keeps alerts in memory, and ends those of which it hears nothing. So it is told every few hours which
episodes are open, as the log says.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiokafka.errors import KafkaError

from headrace.schemas.bounds import is_time
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.reading import KafkaRecord, scan
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.topics import ALERTS
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.notifying.delivery import Alertmanager, Http, Log, Mail, NotDelivered, Refused, Sink
from headrace.streams.notifying.formats import Notice

logger = logging.getLogger(__name__)

GROUP = "headrace-notify"
"""Prefix of the consumer groups."""
_BATCH = 50
FIRST_PAUSE_S = 0.5
"""First pause in seconds after a failed attempt; each further one is twice as long."""


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """Settings of the notifier."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    member: str | None = None
    """Static membership name of this process."""
    webhook: str | None = None
    """URL that gets each alert as JSON, by POST."""
    alertmanager: str | None = None
    """URL of Alertmanager: ``http://host:9093``."""
    token_file: Path | None = None
    """File with a bearer token for webhook and Alertmanager, such as a mounted secret."""
    smtp: str | None = None
    """Mail server: ``host:port``."""
    mail_from: str = "headrace@localhost"
    """Sender of e-mails."""
    mail_to: tuple[str, ...] = ()
    """Recipients of e-mails."""
    smtp_user: str | None = None
    """User at the mail server; ``None``: no login."""
    smtp_password_file: Path | None = None
    """File with the password of ``smtp_user``."""
    smtp_starttls: bool = False
    """Whether the connection to the mail server is encrypted, and its certificate checked; required for a login."""
    smtp_ca_file: Path | None = None
    """PEM file with the authority of the mail server's certificate; ``None``: those of the system."""
    log: bool = False
    """Whether alerts are also logged."""
    from_beginning: bool = False
    """Whether a new sink gets the alerts that exist; otherwise it starts with new ones."""
    retry_most_s: float = 60.0
    """Longest pause in seconds between two attempts."""
    repeat_s: float = 6 * 3600.0
    """Seconds after which Alertmanager is told again which episodes are open: it forgets them when it is restarted, and
    ends those of which it hears nothing for a week."""

    def __post_init__(self) -> None:
        if not (self.webhook or self.alertmanager or self.smtp or self.log):
            raise ValueError("notify has no sink: set webhook, alertmanager, smtp or log")
        for name, url in (("webhook", self.webhook), ("alertmanager", self.alertmanager)):
            if url is not None and not url.startswith(("http://", "https://")):
                raise ValueError(f"{name} is {url!r}: it must begin with http:// or https://")
        if self.smtp is not None:
            host, _, port = self.smtp.rpartition(":")
            if not host or not port.isdecimal() or not self.mail_to:
                raise ValueError("smtp must be host:port, and mail_to must name a recipient")
        if (self.smtp_user is None) != (self.smtp_password_file is None):
            raise ValueError("smtp_user and smtp_password_file belong together: set both or neither")
        if self.smtp_user is not None and not self.smtp_starttls:
            raise ValueError("smtp_user needs smtp_starttls: a password is not sent unencrypted")
        for name in ("token_file", "smtp_password_file", "smtp_ca_file"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name} names {path}, which is not a file")
        if self.smtp_ca_file is not None and not self.smtp_starttls:
            raise ValueError("smtp_ca_file needs smtp_starttls: without it the connection has no certificate")
        _tls_of(self)
        if self.retry_most_s <= 0:
            raise ValueError("retry_most_s must be above 0")
        if not 0 < self.repeat_s <= 86_400:
            raise ValueError("repeat_s must be above 0, and at most a day")


def sinks_of(config: NotifyConfig) -> list[Sink]:
    """Returns the sinks that ``config`` names. Reads the files with secrets."""
    token = config.token_file.read_text().strip() if config.token_file else None
    sinks: list[Sink] = []
    if config.webhook:
        sinks.append(Http("webhook", config.webhook, token=token))
    if config.alertmanager:
        sinks.append(Alertmanager(config.alertmanager, token=token))
    if config.smtp:
        host, _, port = config.smtp.rpartition(":")
        password = config.smtp_password_file.read_text().strip() if config.smtp_password_file else None
        sinks.append(
            Mail(
                host,
                int(port),
                config.mail_from,
                config.mail_to,
                user=config.smtp_user,
                password=password,
                tls=_tls_of(config),
            )
        )
    if config.log:
        sinks.append(Log())
    return sinks


def _tls_of(config: NotifyConfig) -> ssl.SSLContext | None:
    if not config.smtp_starttls:
        return None
    try:
        return ssl.create_default_context(cafile=config.smtp_ca_file)
    except ssl.SSLError as error:
        raise ValueError(f"smtp_ca_file {config.smtp_ca_file} holds no certificate in PEM form: {error}") from error


async def run_notifier(config: NotifyConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Deliver alerts until ``stop`` is set. ``ready`` is called once every sink's consumer is started."""
    sinks = sinks_of(config)
    waiting = {sink.name for sink in sinks}

    def started(name: str) -> None:
        waiting.discard(name)
        if not waiting:
            ready()

    async with asyncio.TaskGroup() as tasks:
        for sink in sinks:
            tasks.create_task(_serve(config, sink, stop, started))


async def _serve(config: NotifyConfig, sink: Sink, stop: asyncio.Event, started: Callable[[str], None]) -> None:
    async with open_consumer(
        config.bootstrap,
        (ALERTS,),
        group=f"{GROUP}-{sink.name}",
        group_instance_id=f"{config.member}-{sink.name}" if config.member else None,
        auto_offset_reset="earliest" if config.from_beginning else "latest",
    ) as consumer:
        started(sink.name)
        pause_s, repeats_at = FIRST_PAUSE_S, time.monotonic()
        while not stop.is_set():
            fault = await deliver_next(consumer, sink)
            # Without a partition another process of the group has it, until it fails.
            is_due = time.monotonic() >= repeats_at and bool(consumer.assignment())
            if fault is None and is_due and isinstance(sink, Alertmanager):
                fault = await repeat_open(config.bootstrap, consumer, sink)
                repeats_at = repeats_at if fault else time.monotonic() + config.repeat_s
            if fault is None:
                pause_s = FIRST_PAUSE_S
                continue
            pause_s = min(pause_s, config.retry_most_s)
            logger.warning("%s did not take an alert; next attempt in %.1f s: %s", sink.name, pause_s, fault)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            pause_s *= 2


async def repeat_open(bootstrap: str, consumer: ReportingConsumer, sink: Alertmanager) -> NotDelivered | None:
    """Deliver the episodes again that are open after the records that ``consumer`` has committed. Returns why they were
    not taken, or could not be read: while Kafka is away other sinks continue. What is refused for good is logged.
    """
    try:
        opened = await _opened(bootstrap, consumer)
        await sink.repeat(list(opened.values()), time.time_ns() // 1_000_000)
    except (KafkaError, OSError) as error:
        return NotDelivered(f"Kafka does not tell which episodes are open: {type(error).__name__}: {error}")
    except Refused as error:
        logger.error("%s refuses open episodes: %s", sink.name, error)
    except NotDelivered as error:
        return error
    return None


async def _opened(bootstrap: str, consumer: ReportingConsumer) -> dict[str, Notice]:
    """Returns the newest notice of each episode that is open after the records that ``consumer`` has committed."""
    committed = {place: await consumer.committed(place) or 0 for place in consumer.assignment()}
    opened: dict[str, Notice] = {}
    async with open_consumer(bootstrap) as reader:
        ends = {place.partition: end for place, end in committed.items()}
        async for record in scan(reader, list(committed), stop=ends):
            with suppress(UnreadableRecord):
                fold_open(opened, _read(record))
    return opened


def fold_open(opened: dict[str, Notice], notice: Notice | None) -> None:
    """Add the next notice to ``opened``, the newest of each open episode by id."""
    episode = None if notice is None else notice.alert.episode
    if notice is None or episode is None or episode.state is EpisodeState.ACKNOWLEDGED:
        return
    opened.pop(episode.id, None)
    if episode.state is not EpisodeState.RESOLVED:
        opened[episode.id] = notice


async def deliver_next(consumer: ReportingConsumer, sink: Sink) -> NotDelivered | None:
    """Deliver the next records of ``consumer`` to ``sink``, and commit what was delivered.

    If a record is not taken, the consumer's position returns to it, and the reason is returned: it is read again by the
    next call, so that however long a sink is away, nothing waits in memory and the consumer keeps its place in the
    group.
    """
    batches = await consumer.getmany(timeout_ms=500, max_records=_BATCH)
    fault = None
    for place, records in batches.items():
        undelivered, error = await deliver(records, sink)
        fault = fault or error
        first = records[-1].offset + 1 if undelivered is None else undelivered
        if undelivered is not None:
            consumer.seek(place, undelivered)
        if first > records[0].offset:
            await consumer.commit({place: first})
    return fault


async def deliver(records: Sequence[KafkaRecord], sink: Sink) -> tuple[int | None, NotDelivered | None]:
    """Deliver ``records`` in order. Returns the offset of the first that was not taken, and why; ``None`` twice if all
    were taken, or refused for good, which is logged.
    """
    for record in records:
        if (notice := notice_of(record)) is None:
            continue
        try:
            await sink.deliver(notice)
        except Refused as error:
            logger.error("%s refuses the alert %s for good: %s", sink.name, notice.id, error)
        except NotDelivered as error:
            return record.offset, error
    return None, None


def notice_of(record: KafkaRecord) -> Notice | None:
    """Returns the alert in ``record``, with the time of its envelope if Kafka's, which its producer set, is no date;
    ``None`` if it cannot be read, which is logged: the sink of ClickHouse makes the dead letter.
    """
    try:
        return _read(record)
    except UnreadableRecord as error:
        logger.warning("no notice of %s[%d]@%d: %s", record.topic, record.partition, record.offset, error)
        return None


def _read(record: KafkaRecord) -> Notice | None:
    envelope, payload = decode(record.headers, record.value)
    if not isinstance(payload, Alert):
        return None
    return Notice(envelope.id, record.timestamp if is_time(record.timestamp) else envelope.time_ms, payload)
