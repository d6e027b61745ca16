"""Delivers encoded events to the broker: in order, resent until acknowledged, bounded in number and bytes.

A *session* lasts as long as one idempotent producer. Within a session aiokafka retries for as long as the broker is
unavailable. A permanent error (the broker has forgotten the producer id, a topic does not exist) ends the session, and
a new session sends all unacknowledged events again, in order. Readers recognise a repeated event by its trajectory and
sequence number.

Of an error whose code the client does not know, nobody can tell whether it concerns one record, its batch or the
broker. The events of the batch are in *doubt*: the next sessions send each of them alone. One that is refused alone is
put aside until another one of its topic is accepted, or no other waits, and then tried again, with growing pauses. It
is dropped as ``refused`` after ``MAX_REFUSALS`` if the broker has accepted others of its topic meanwhile.

Producer ids are unique within a cluster. A cluster that is recreated at the same address assigns them from 0 again,
while a session with an id of the old cluster may still write to it. The broker would take the first batches of a second
session with the same id for repetitions, acknowledge them and not store them. Therefore no session uses an id under
which this process, or the process that it was forked from, has already sent.
"""

import asyncio
import heapq
import inspect
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidMessageError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnknownError,
)
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from headrace.agents.counters import LOG_INTERVAL_S, DropReason, SdkCounters
from headrace.schemas.kafka.clients import COMPRESSION, MAX_REQUEST_BYTES, start_client, stop_producer
from headrace.schemas.kafka.security import with_security
from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import Message

Ticket = int
"""Position of an event in the order of this process."""

Offered = tuple[Ticket, str, Message]
"""An event with its position and the name of its topic."""

REFUSALS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidMessageError, InvalidTopicError)
"""Permanent errors that concern a single record: one that is larger than a batch is a batch of its own."""

DOUBTS = (UnknownError, PolicyViolationError)
"""Permanent errors that may concern a single record: ``UnknownError`` stands for every code that the client does not
know, such as ``INVALID_RECORD``."""

MAX_REFUSALS = 5
"""Times for which an event in doubt is sent alone before it is dropped."""

REFUSED_S = 2.0
"""Pause after the first refusal of an event that was sent alone, in seconds; it doubles with each further one."""

TIMER_S = 0.05
"""What a timer is set later than its time, in seconds, because it may ring a little early."""

RECONNECT_MIN_S, RECONNECT_MAX_S = 0.1, 5.0
"""Shortest and longest pause between attempts to connect, and between sessions without any acknowledgement."""

RETRY_BACKOFF_MS = 250
"""Pause between the client's own retries: no transaction waits for them, and an outage should cost little."""

STOP_TIMEOUT_S = 2.0
"""Longest wait for an abandoned producer to stop."""

_DEFAULTS: dict[str, Any] = {
    "enable_idempotence": True,
    "compression_type": COMPRESSION,
    "linger_ms": 5,
    "max_request_size": MAX_REQUEST_BYTES,
    "request_timeout_ms": 10_000,
    "retry_backoff_ms": RETRY_BACKOFF_MS,
}
"""Settings of the producer, which the host's replace."""

_NOT_OPTIONS = frozenset({"self", "loop", "bootstrap_servers", "transactional_id"})
"""Arguments of the producer that are no settings for a host: the SDK gives the address and runs no transactions."""


_TOPIC_NAMES = frozenset(topic.name for topic in TOPICS)

_used_ids: defaultdict[str, set[int]] = defaultdict(set)
"""Producer ids under which this process has sent, by the cluster's address."""


@dataclass(slots=True)
class _Doubt:
    """What is known of an event whose batch was refused for an unknown reason."""

    accepted_before: int
    """Number of acknowledged events of its topic when the doubt began."""
    refusals: int = 0
    """Number of refusals when it was sent alone."""
    again_at: float = 0.0
    """When to send it again, in seconds: not before, except after the first refusal."""


def check_topic(name: str) -> None:
    """Raise ``InvalidTopicError``, one of :data:`REFUSALS`, for a topic that this version does not have: another one
    may have left its events on disk, and the client would wait for the topic, and all other events with it."""
    if name not in _TOPIC_NAMES:
        raise InvalidTopicError("this version of headrace has no such topic")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if no producer can be made with these settings of a host. Nothing is connected."""
    parameters = inspect.signature(AIOKafkaProducer.__init__).parameters
    for name, value in options.items():
        if name not in parameters or name in _NOT_OPTIONS:
            if name == "bootstrap_servers":
                raise ValueError("kafka_options has 'bootstrap_servers': pass the address as the first argument")
            known = [each for each in parameters if each not in _NOT_OPTIONS]
            close = [repr(each) for each in get_close_matches(str(name), known, n=1)] or known
            raise ValueError(
                f"kafka_options has {name!r}, which the SDK's producer of aiokafka does not take: expected "
                f"{', '.join(close)}"
            )
        if type(parameters[name].default) is int and type(value) not in (int, float):
            raise ValueError(f"kafka_options[{name!r}] is of type {type(value).__name__}: expected a number")

    problems: list[Exception] = []

    async def make() -> None:
        try:
            producer = AIOKafkaProducer(bootstrap_servers="localhost:9092", **with_security(_DEFAULTS | dict(options)))
            await producer.stop()
        except Exception as error:  # noqa: BLE001 - whatever it is, the sender would meet it at each attempt
            problems.append(error)

    # On a thread of its own: the host's may run an event loop already.
    thread = threading.Thread(target=lambda: asyncio.run(make()), name="headrace-sdk-options")
    thread.start()
    thread.join()
    for error in problems:
        raise ValueError(f"no Kafka producer can be made with these kafka_options: {error}") from error


class EventDelivery:
    """Holds the events in memory that are to be sent, until they are acknowledged. All methods run on the sender's
    event loop."""

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, Any],
        counters: SdkCounters,
        on_resolved: Callable[[Ticket], None] = lambda ticket: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_resolved`` is called with the ticket of each event that is acknowledged or dropped; ``clock`` returns
        seconds."""
        self._bootstrap = bootstrap
        self._options = options
        self._counters = counters
        self._on_resolved = on_resolved
        self._clock = clock
        self._progress_at = clock()
        self._waiting: list[Offered] = []
        self._in_flight: dict[Ticket, tuple[str, Message]] = {}
        self._doubts: dict[Ticket, _Doubt] = {}
        self._aside: dict[Ticket, Offered] = {}
        self._alone: Ticket | None = None
        self._accepted = Counter[str]()
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._reported_at: dict[str, float] = {}
        self.producer: AIOKafkaProducer | None = None
        """The producer of the current session; ``None`` while there is no connection."""
        self.pending = 0
        """Number of events that are neither acknowledged nor dropped."""
        self.pending_bytes = 0
        """Their size in bytes."""
        self.sent = 0
        """Number of acknowledged events."""

    @property
    def waiting(self) -> int:
        """Number of events that were not handed to the client yet, or are put aside."""
        return len(self._waiting) + len(self._aside)

    @property
    def stalled_s(self) -> float:
        """Seconds for which events have been pending without any being acknowledged; 0 if none are pending."""
        return self._clock() - self._progress_at if self.pending else 0.0

    def offer(self, ticket: Ticket, topic: str, message: Message) -> None:
        """Accept ``message`` for delivery to ``topic``; it is sent after all messages with a smaller ``ticket``."""
        if not self.pending:
            self._progress_at = self._clock()
        self.pending += 1
        self.pending_bytes += len(message.value)
        heapq.heappush(self._waiting, (ticket, topic, message))
        self._wake.set()

    def in_flight(self) -> list[Offered]:
        """Return the events that were handed to the client and not acknowledged, in order; they stay here."""
        return [(ticket, topic, message) for ticket, (topic, message) in sorted(self._in_flight.items())]

    def withdraw(self, is_wanted: Callable[[Ticket], bool]) -> list[Offered]:
        """Give up the wanted events among those that were not handed to the client, and return them in order."""
        self._recall(lambda topic, doubt: True)
        withdrawn = sorted(each for each in self._waiting if is_wanted(each[0]))
        self._waiting = [each for each in self._waiting if not is_wanted(each[0])]
        heapq.heapify(self._waiting)
        self.pending -= len(withdrawn)
        self.pending_bytes -= sum(len(message.value) for _, _, message in withdrawn)
        return withdrawn

    def resolved_up_to(self, ticket: Ticket) -> bool:
        """Return whether every event up to ``ticket`` is acknowledged or dropped."""
        first = (each for each in (*self._in_flight, *self._aside, *(offered[0] for offered in self._waiting[:1])))
        return min(first, default=ticket + 1) > ticket

    async def run(self) -> None:
        """Deliver events until cancelled, whether or not the broker is available."""
        pause = RECONNECT_MIN_S
        while True:
            # A session is opened only for an event: an idle agent holds no connection.
            await self._wait_for_work()
            sent_before = self.sent
            try:
                failure = await self._connect_and_send()
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                failure = error  # out of the client: nobody has cancelled this
            # The broker may accept the events later, after a change of an ACL, a topic or a clock.
            pause = RECONNECT_MIN_S if self.sent > sent_before else min(2 * pause, RECONNECT_MAX_S)
            self._report("Kafka at {} does not accept events", failure)
            await asyncio.sleep(pause)

    async def _connect_and_send(self) -> BaseException | None:
        """Run one session; return the error that ended it."""
        producer = await self._connect()
        try:
            await self._session(producer)
        finally:
            self.producer = None
            failure = self._failure
            try:
                await stop_producer(producer, STOP_TIMEOUT_S)
            finally:  # the end of the process may interrupt it
                for ticket, (topic, message) in self._in_flight.items():
                    heapq.heappush(self._waiting, (ticket, topic, message))
                self._in_flight = {}
        return failure

    async def _connect(self) -> AIOKafkaProducer:
        retrying = AsyncRetrying(
            # Any error: giving up would be worse, and the log shows settings that cannot work.
            retry=retry_if_exception_type(Exception),
            wait=wait_exponential_jitter(multiplier=RECONNECT_MIN_S, max=RECONNECT_MAX_S),
            before_sleep=self._not_connected,
        )
        async for attempt in retrying:
            with attempt:
                return await self._unused_producer(_DEFAULTS | dict(self._options))
        raise AssertionError("retries without end ended")

    async def _unused_producer(self, options: Mapping[str, Any]) -> AIOKafkaProducer:
        """Return a started producer whose id this process has not used yet; raises the client's errors."""
        while True:
            producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **with_security(options))
            try:
                await start_client(producer)
            except BaseException:
                await stop_producer(producer, STOP_TIMEOUT_S)
                raise
            if producer_id(producer) not in _used_ids[self._bootstrap]:
                return producer
            await stop_producer(producer, STOP_TIMEOUT_S)

    def _not_connected(self, state: RetryCallState) -> None:
        self._report("no connection to Kafka at {}", state.outcome.exception() if state.outcome else None)

    def _report(self, what: str, error: BaseException | None) -> None:
        """Log a problem, once a minute for each type of error. ``what`` has a placeholder for the address."""
        now, kind = time.monotonic(), type(error).__name__
        if now - self._reported_at.get(kind, now - LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._reported_at[kind] = now
            text = what.format(self._bootstrap)
            self._counters.log(logging.WARNING, f"{text} ({error!r}): {self.pending} events wait, retrying")

    async def _session(self, producer: AIOKafkaProducer) -> None:
        """Hand events to ``producer`` in order until it fails; ``_failure`` is the error."""
        self.producer = producer
        self._failure = None
        own, used_ids = producer_id(producer), _used_ids[self._bootstrap]
        while self._failure is None:
            if not self._waiting:
                await self._wait_for_work()
                continue
            if self._waiting[0][0] in self._doubts and self._in_flight:
                await self._until(lambda: not self._in_flight)
                continue
            ticket, topic, message = heapq.heappop(self._waiting)
            self._in_flight[ticket] = (topic, message)
            self._alone = ticket if ticket in self._doubts else None
            try:
                check_topic(topic)
                future = await producer.send(topic, key=message.key, value=message.value, headers=message.headers)
            except (*REFUSALS, TypeError, ValueError, AssertionError) as error:
                self._refuse(self._in_flight, ticket, topic, error)
            except KafkaError as error:
                self._failure = error
            else:
                if own is not None:
                    used_ids.add(own)
                future.add_done_callback(partial(self._answered, self._in_flight, ticket))
                if self._alone is not None:
                    await self._until(lambda: self._alone not in self._in_flight)

    def _answered(
        self, in_flight: dict[Ticket, tuple[str, Message]], ticket: Ticket, future: "asyncio.Future[Any]"
    ) -> None:
        """Handle the broker's answer for ``ticket``. ``in_flight`` belongs to the ticket's session, so that an answer
        for an earlier session changes nothing."""
        # The exception is always retrieved: otherwise asyncio logs it in the host's log.
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if ticket not in in_flight or in_flight is not self._in_flight:
            return
        if isinstance(error, REFUSALS):
            self._refuse(in_flight, ticket, in_flight[ticket][0], error)
        elif isinstance(error, DOUBTS):
            self._doubt(in_flight, ticket, error)
        elif error is not None:
            self._failure = error
            self._wake.set()
        else:
            self.sent += 1
            topic, now = in_flight[ticket][0], self._clock()
            self._accepted[topic] += 1
            self._resolve(in_flight, ticket)
            # After one refusal at once: the broker may have refused everything of the topic until now.
            self._recall(lambda its, doubt: its == topic and (doubt.refusals == 1 or doubt.again_at <= now))

    def _doubt(self, in_flight: dict[Ticket, tuple[str, Message]], ticket: Ticket, error: BaseException) -> None:
        """End the session, after which the event is sent alone; if it was, put it aside, or drop it."""
        topic, message = in_flight[ticket]
        doubt = self._doubts.setdefault(ticket, _Doubt(self._accepted[topic]))
        if self._alone == ticket:
            doubt.refusals += 1
            if doubt.refusals >= MAX_REFUSALS and self._accepted[topic] > doubt.accepted_before:
                self._refuse(in_flight, ticket, topic, error)
            else:
                self._aside[ticket] = (ticket, topic, message)
                del in_flight[ticket]
                pause = REFUSED_S * 2 ** (min(doubt.refusals, MAX_REFUSALS) - 1)
                doubt.again_at = self._clock() + pause
                asyncio.get_running_loop().call_later(pause + TIMER_S, self._wake.set)
        self._failure = error
        self._wake.set()

    def _recall(self, is_wanted: Callable[[str, _Doubt], bool]) -> None:
        """Have the wanted ones of the events that were put aside wait again. ``is_wanted`` gets topic and doubt."""
        for ticket, topic, _ in [*self._aside.values()]:
            if is_wanted(topic, self._doubts[ticket]):
                heapq.heappush(self._waiting, self._aside.pop(ticket))

    def _refuse(
        self, in_flight: dict[Ticket, tuple[str, Message]], ticket: Ticket, topic: str, error: BaseException
    ) -> None:
        self._resolve(in_flight, ticket)
        self._counters.drop(DropReason.REFUSED, f"topic {topic}: {error!r}")

    def _resolve(self, in_flight: dict[Ticket, tuple[str, Message]], ticket: Ticket) -> None:
        _, message = in_flight.pop(ticket)
        if self._doubts:
            self._doubts.pop(ticket, None)
            self._wake.set()
        self.pending -= 1
        self.pending_bytes -= len(message.value)
        self._progress_at = self._clock()
        self._on_resolved(ticket)

    async def _wait_for_work(self) -> None:
        await self._until(self._has_work)

    def _has_work(self) -> bool:
        """Return whether an event is to be sent; if no other is, one that was put aside."""
        if self._aside and not self._waiting and not self._in_flight:
            now = self._clock()
            self._recall(lambda topic, doubt: doubt.again_at <= now)
        return bool(self._waiting)

    async def _until(self, is_met: Callable[[], bool]) -> None:
        """Wait for a condition, or a failure."""
        while self._failure is None and not is_met():
            self._wake.clear()
            await self._wake.wait()


def producer_id(producer: AIOKafkaProducer) -> int | None:
    """Return the id under which a started ``producer`` sends; ``None`` without ``enable_idempotence``."""
    return None if producer._txn_manager is None else int(producer._txn_manager.producer_id)
