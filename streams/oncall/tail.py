"""Follows the topics that ``oncall`` watches from where their newest records begin, and folds them.

    alerts, budget    from the start            steps, observations   the last 100 records of a partition
    dead-letters, sdk-stats, feedback           what the window covers
    dead-letters                                also what the process before has not judged

Dead letters have the times of their records, which do not tell which ones are new. The consumer group headrace-oncall
does: its offsets are committed when the alerts about what is before them have been written.

Only the newest observations of a batch are decoded: they say when a rollout arrived, not what it did. Between two reads
nothing is fetched: all partitions are paused, and a read resumes those that have grown.
"""

import logging
from collections.abc import Mapping

from aiokafka import TopicPartition

from headrace.schemas.envelope import SUBJECT
from headrace.schemas.events import SdkStatsReported
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import AT_ONCE, KafkaRecord, Stall, next_records, partitions_of
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.step import Budget
from headrace.schemas.records.watch import Lane, Observation
from headrace.schemas.topics import ALERTS, BUDGET, DEAD_LETTERS, FEEDBACK, OBSERVATIONS, SDK_STATS, STEPS, Topic
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.oncall.alarms import Alarms
from headrace.streams.oncall.recent import FEEDBACK_WAIT_MS, Recent

logger = logging.getLogger(__name__)

GROUP = "headrace-oncall"
"""Consumer group of the dead letters that were judged."""
FROM_START: tuple[Topic, ...] = (ALERTS, BUDGET)
NEWEST: tuple[Topic, ...] = (STEPS, OBSERVATIONS)
IN_WINDOW: tuple[Topic, ...] = (DEAD_LETTERS, SDK_STATS, FEEDBACK)
READS: tuple[Topic, ...] = (*FROM_START, *NEWEST, *IN_WINDOW)
"""The topics that it reads."""
LAST = 100
"""Records of a partition of ``NEWEST`` that are read at the start."""
MOST_BATCHES = 100
"""Most batches of 1,000 records that are read before the next measurement."""
MOST_EMPTY = 4
"""Most empty batches, each after half a second, after which a read ends: an open transaction hides what follows it."""
DECODED = 50
"""Newest observations of a batch that are decoded."""


class Tail:
    """Reads the topics through one consumer without assignment, of the group :data:`GROUP`."""

    def __init__(
        self, bootstrap: str, consumer: ReportingConsumer, recent: Recent, alarms: Alarms, *, window_s: float
    ) -> None:
        self._bootstrap = bootstrap
        self._consumer = consumer
        self._recent = recent
        self._alarms = alarms
        self._window_ms = round(window_s * 1000)
        self._places: list[TopicPartition] = []
        self._judged: dict[TopicPartition, int] = {}

    async def start(self, now_ms: int) -> None:
        """Fold what is in the log by now. Raises ``LookupError`` if a topic is missing."""
        by_topic = {topic.name: await partitions_of(self._consumer, topic) for topic in READS}
        self._places = [place for places in by_topic.values() for place in places]
        begins = await self._consumer.beginning_offsets(self._places)
        ends = await self._consumer.end_offsets(self._places)
        since = now_ms - self._window_ms - FEEDBACK_WAIT_MS
        dated = {place: since for topic in IN_WINDOW for place in by_topic[topic.name]}
        found = await self._consumer.offsets_for_times(dated)
        committed = await committed_offsets(self._bootstrap, GROUP, by_topic[DEAD_LETTERS.name])
        # An offset beyond the end is of a former topic of this name; without one, times are all there is.
        self._judged = {place: at.offset for place, at in committed.items() if 0 <= at.offset <= ends[place]}
        self._consumer.assign(self._places)
        for place in self._places:
            begin = begins[place]
            if place in dated:
                begin = max(begin, found[place].offset if found.get(place) is not None else ends[place])
                begin = max(begins[place], min(begin, self._judged.get(place, begin)))
            elif any(place.topic == topic.name for topic in NEWEST):
                begin = max(begin, ends[place] - LAST)
            self._consumer.seek(place, begin)
        stall = Stall()
        while (positions := await self._positions()) and any(at < ends[place] for place, at in positions.items()):
            stall.moved_to(positions)
            self._fold(await next_records(self._consumer, self._places, AT_ONCE), now_ms, follows=False)
        self._consumer.pause(*self._places)

    async def read(self, now_ms: int) -> None:
        """Fold what has arrived since; of ``NEWEST`` only the last records, however many there are. Raises aiokafka's
        errors if the broker does not answer."""
        ends = await self._consumer.end_offsets(self._places)
        grown = [place for place in self._places if await self._consumer.position(place) != ends[place]]
        for place in grown:
            if any(place.topic == topic.name for topic in NEWEST):
                self._consumer.seek(place, max(await self._consumer.position(place), ends[place] - LAST))
        if not grown:
            return
        self._consumer.resume(*grown)
        try:
            empty = 0
            for _ in range(MOST_BATCHES):
                batches = await next_records(self._consumer, grown, AT_ONCE)
                self._fold(batches, now_ms, follows=True)
                empty = 0 if batches else empty + 1
                if empty == MOST_EMPTY or all([await self._consumer.position(each) >= ends[each] for each in grown]):
                    return
        finally:
            self._consumer.pause(*self._places)

    async def commit(self) -> None:
        """Note that all dead letters that were read are judged. Raises aiokafka's errors."""
        judged = {at: await self._consumer.position(at) for at in self._places if at.topic == DEAD_LETTERS.name}
        if judged != self._judged:
            await self._consumer.commit(judged)
            self._judged = judged

    async def has_read(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has folded everything before ``ends``: open transactions hide what follows them."""
        return all([await self._consumer.position(place) >= end for place, end in ends.items()])

    async def _positions(self) -> dict[TopicPartition, int]:
        return {place: await self._consumer.position(place) for place in self._places}

    def _fold(self, batches: Mapping[TopicPartition, list[KafkaRecord]], now_ms: int, *, follows: bool) -> None:
        for place, records in batches.items():
            if place.topic == STEPS.name:  # large records, of which only run and time are needed
                for record in records:
                    self._recent.add_step(
                        (record.key or b"").decode(errors="replace"), seen_at(record, now_ms, follows)
                    )
                continue
            for record in records[-DECODED:] if place.topic == OBSERVATIONS.name else records:
                is_new = follows or record.offset >= self._judged.get(place, record.offset + 1)
                self._add(record, seen_at(record, now_ms, is_new), follows=follows)

    def _add(self, record: KafkaRecord, time_ms: int, *, follows: bool) -> None:
        if record.topic == FEEDBACK.name:
            subject = dict(record.headers).get(SUBJECT) or b""
            self._recent.add_feedback(subject.decode(errors="replace"), time_ms)
            return
        try:
            envelope, payload = decode(record.headers, record.value)
        except UnreadableRecord as error:  # the sink makes a dead letter of it
            logger.warning("%s %d:%d cannot be read: %s", record.topic, record.partition, record.offset, error)
            return
        match payload:
            case Alert():
                self._alarms.add(payload)
                self._recent.add_alert(payload)
            case Budget():
                self._recent.add_budget(payload, time_ms)
            case DeadLetter():
                self._recent.add_dead_letter(payload, time_ms)
            case SdkStatsReported():
                self._recent.add_sdk_stats(envelope.source, payload, time_ms, follows=follows)
            case Observation() if payload.of is Lane.ATTEMPT:
                self._recent.add_rollout(payload.run, time_ms)


def seen_at(record: KafkaRecord, now_ms: int, follows: bool) -> int:
    """Returns when ``record`` counts, Unix milliseconds: now, ``now_ms``, if it has just arrived, and otherwise at its
    timestamp. Timestamps of new records are not used: that of a dead letter is its record's, which may be an hour old
    when a backlog is processed, and an SDK dates by the clock of its machine.
    """
    return now_ms if follows else max(0, min(record.timestamp, now_ms))
