"""Encoded events on their way to the broker: in order, resent until acknowledged, bounded in number and bytes.

A *session* is the life of one idempotent producer. Inside it aiokafka retries by itself, for as long as the broker is
away. What fails for good (a producer id the broker has forgotten, a topic that does not exist) ends the session: all
that is not acknowledged is sent again, in order, by a new one. Readers tell a repeated event by its trajectory and
sequence number.

Producer ids are unique within a cluster. One that is made anew at the same address hands them out from 0 again, while
a session with the old cluster's id may still write to it; a second session with that id would have its first batches
acknowledged as repetitions of the other's, and not stored. So no session has an id under which this process, or the
one that it was forked from, has sent before.
"""

import asyncio
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidMessageError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
)
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from headrace.agents.tally import REMIND_S, DropReason, Tally
from headrace.schemas.kafka.clients import COMPRESSION, MAX_REQUEST_BYTES, start_client, stop_producer
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

Ticket = int
"""Position of an event in the order of this process."""

REFUSALS = (MessageSizeTooLargeError, InvalidMessageError, InvalidTopicError)
"""Answers that concern one record and will not change."""

RECONNECT_MIN_S, RECONNECT_MAX_S = 0.1, 5.0
"""Pauses between two attempts to reach the broker, and between two sessions in which it acknowledged nothing."""

RETRY_BACKOFF_MS = 250
"""Pause of the client between its own attempts: no transaction waits for it, and an outage should cost little."""

STOP_TIMEOUT_S = 2.0
"""Longest wait for a producer that is given up."""


_sent_as: defaultdict[str, set[int]] = defaultdict(set)
"""Producer ids that were sent under, by the cluster's address."""


class Delivery:
    """The events between encoding and acknowledgement. All methods run on the sender's event loop."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any], tally: Tally) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._tally = tally
        self._waiting: list[tuple[Ticket, Topic, Message]] = []
        self._flying: dict[Ticket, tuple[Topic, Message]] = {}
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._explained: dict[str, float] = {}
        self.producer: AIOKafkaProducer | None = None
        """The producer of the present session; ``None`` while there is no connection."""
        self.unsettled = 0
        """Events neither acknowledged nor dropped."""
        self.unsettled_bytes = 0
        """Their size."""
        self.sent = 0
        """Events acknowledged."""

    def offer(self, ticket: Ticket, topic: Topic, message: Message) -> None:
        """Take ``message`` on; it is sent after all with a smaller ``ticket``."""
        self.unsettled += 1
        self.unsettled_bytes += len(message.value)
        heapq.heappush(self._waiting, (ticket, topic, message))
        self._wake.set()

    def settled_up_to(self, ticket: Ticket) -> bool:
        """Whether every event up to ``ticket`` is acknowledged or dropped."""
        oldest = min(self._waiting[0][0] if self._waiting else ticket + 1, min(self._flying, default=ticket + 1))
        return oldest > ticket

    async def run(self) -> None:
        """Deliver until cancelled. The broker may be away at the start, later, or for ever."""
        pause = RECONNECT_MIN_S
        while True:
            # A session is opened only when there is something to send: an idle agent holds no connection.
            await self._something_waits()
            producer = await self._connect()
            sent_before = self.sent
            try:
                await self._session(producer)
            finally:
                self.producer = None
                failure = self._failure
                await stop_producer(producer, STOP_TIMEOUT_S)
                for ticket, (topic, message) in self._flying.items():
                    heapq.heappush(self._waiting, (ticket, topic, message))
                self._flying = {}
            # What the broker will not take now, it may take later: an ACL, a topic, a clock that is set right.
            pause = RECONNECT_MIN_S if self.sent > sent_before else min(2 * pause, RECONNECT_MAX_S)
            self._explain("Kafka at {} does not take events", failure)
            await asyncio.sleep(pause)

    async def _connect(self) -> AIOKafkaProducer:
        retrying = AsyncRetrying(
            # Whatever it is: giving up would be worse, and a setting that cannot work shows in the log.
            retry=retry_if_exception_type(Exception),
            wait=wait_exponential_jitter(multiplier=RECONNECT_MIN_S, max=RECONNECT_MAX_S),
            before_sleep=self._not_connected,
        )
        defaults: dict[str, Any] = {
            "enable_idempotence": True,
            "compression_type": COMPRESSION,
            "linger_ms": 5,
            "max_request_size": MAX_REQUEST_BYTES,
            "request_timeout_ms": 10_000,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }
        async for attempt in retrying:
            with attempt:
                return await self._unused_producer(defaults | dict(self._options))
        raise AssertionError("retries without end ended")

    async def _unused_producer(self, options: Mapping[str, Any]) -> AIOKafkaProducer:
        """A started producer with an id that was not sent under yet; raises what the client raises."""
        while True:
            producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **options)
            try:
                await start_client(producer)
            except BaseException:
                await stop_producer(producer, STOP_TIMEOUT_S)
                raise
            if producer_id(producer) not in _sent_as[self._bootstrap]:
                return producer
            await stop_producer(producer, STOP_TIMEOUT_S)

    def _not_connected(self, state: RetryCallState) -> None:
        self._explain("no connection to Kafka at {}", state.outcome.exception() if state.outcome else None)

    def _explain(self, what: str, error: BaseException | None) -> None:
        """Say what is wrong, once a minute for each kind of error. ``what`` has a place for the address."""
        now, kind = time.monotonic(), type(error).__name__
        if now - self._explained.get(kind, now - REMIND_S) >= REMIND_S:
            self._explained[kind] = now
            text = what.format(self._bootstrap)
            self._tally.say(logging.WARNING, f"{text} ({error!r}): {self.unsettled} events wait, retrying")

    async def _session(self, producer: AIOKafkaProducer) -> None:
        """Hand events to ``producer`` in order until it breaks; ``_failure`` says by what."""
        self.producer = producer
        self._failure = None
        own, sent_as = producer_id(producer), _sent_as[self._bootstrap]
        while self._failure is None:
            if not self._waiting:
                await self._something_waits()
                continue
            ticket, topic, message = heapq.heappop(self._waiting)
            self._flying[ticket] = (topic, message)
            try:
                future = await producer.send(topic.name, key=message.key, value=message.value, headers=message.headers)
            except (*REFUSALS, TypeError, ValueError, AssertionError) as error:
                self._refuse(self._flying, ticket, topic, error)
            except KafkaError as error:
                self._failure = error
            else:
                if own is not None:
                    sent_as.add(own)
                future.add_done_callback(partial(self._landed, self._flying, ticket))

    def _landed(
        self, flying: dict[Ticket, tuple[Topic, Message]], ticket: Ticket, future: "asyncio.Future[Any]"
    ) -> None:
        """The broker answered for ``ticket``. ``flying`` is its session's, so that a late answer changes nothing."""
        # Asked in any case: asyncio writes to the host's log of exceptions that nobody asked for.
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if ticket not in flying or flying is not self._flying:
            return
        if isinstance(error, REFUSALS):
            self._refuse(flying, ticket, flying[ticket][0], error)
        elif error is not None:
            self._failure = error
            self._wake.set()
        else:
            self._settle(flying, ticket)
            self.sent += 1

    def _refuse(
        self, flying: dict[Ticket, tuple[Topic, Message]], ticket: Ticket, topic: Topic, error: BaseException
    ) -> None:
        self._settle(flying, ticket)
        self._tally.drop(DropReason.REFUSED, f"topic {topic.name}: {error!r}")

    def _settle(self, flying: dict[Ticket, tuple[Topic, Message]], ticket: Ticket) -> None:
        _, message = flying.pop(ticket)
        self.unsettled -= 1
        self.unsettled_bytes -= len(message.value)

    async def _something_waits(self) -> None:
        while not self._waiting and self._failure is None:
            self._wake.clear()
            await self._wake.wait()


def producer_id(producer: AIOKafkaProducer) -> int | None:
    """The id under which a started ``producer`` sends; ``None`` without ``enable_idempotence``."""
    return None if producer._txn_manager is None else int(producer._txn_manager.producer_id)
