"""Reads the sides of a comparison from their topics."""

from collections.abc import Mapping

from headrace.schemas.envelope import TYPE
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.side_topics import ReplayFinished, ReplayStage, side_topic
from headrace.schemas.topics import REJECTED, REWARDS, TRAINING, Topic
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.diff.side import DiffSide
from headrace.streams.raw import LogRecord
from headrace.streams.replay.catalog import find_replay
from headrace.streams.typed_reader import TypedReader

LIVE = "live"


async def read_sides(bootstrap: str, name: str, against: str = LIVE) -> tuple[DiffSide, DiffSide]:
    """Returns the side of ``against`` (a replay or live) and that of the replay ``name``, for the trajectories of
    ``name``.

    Raises ``NoReplay`` if one of them does not exist or is not finished, and :class:`RangeExpired` if retention deleted
    records of theirs, now or since the replay.
    """
    replay = await find_replay(bootstrap, name)
    after = await _read_replay(bootstrap, replay)
    if against != LIVE:
        return await _read_replay(bootstrap, await find_replay(bootstrap, against)), after
    before = DiffSide(LIVE, frozenset(after.attempts))
    for topic in (REWARDS, TRAINING, REJECTED):
        # A record derived from a trajectory is never older than the trajectory.
        await _read(bootstrap, topic, before, await _starts(bootstrap, topic, replay.begin_ms))
    return before, after


async def _read_replay(bootstrap: str, replay: ReplayFinished) -> DiffSide:
    side = DiffSide(replay.name)
    if replay.stage is ReplayStage.REWARDS:
        spans = {span.partition: span for span in replay.spans[REWARDS.name]}
        starts = {number: span.start for number, span in spans.items()}
        stops = {number: span.stop for number, span in spans.items()}
        await _read(bootstrap, REWARDS, side, starts, stops)
    else:
        await _read(bootstrap, side_topic(REWARDS, replay.name), side)
    for topic in (TRAINING, REJECTED):
        await _read(bootstrap, side_topic(topic, replay.name), side)
    return side


async def _read(
    bootstrap: str,
    topic: Topic,
    side: DiffSide,
    starts: Mapping[int, int] | None = None,
    stops: Mapping[int, int] | None = None,
) -> None:
    async for record in read_to_end(bootstrap, topic, start=starts, whole=True):
        if stops is not None and record.offset >= stops.get(record.partition, 0):
            continue
        try:
            fold_record(side, record)
        except UnreadableRecord:
            # The live processor turned it into a dead letter: there is nothing to compare.
            continue


_REWARDS, _GROUPS, _REJECTIONS = TypedReader(Reward), TypedReader(TrainingGroup), TypedReader(Rejection)
_REWARD, _GROUP, _REJECTION = Reward.TYPE.encode(), TrainingGroup.TYPE.encode(), Rejection.TYPE.encode()


def fold_record(side: DiffSide, record: LogRecord) -> None:
    """Fold ``record`` into ``side``. Raises :class:`UnreadableRecord`."""
    kind = next((value for name, value in record.headers if name == TYPE), None)
    if kind == _REWARD:
        side.add_reward(_REWARDS.read(record).payload)
    elif kind == _GROUP:
        side.add_group(_GROUPS.read(record).payload)
    elif kind == _REJECTION:
        side.add_rejection(_REJECTIONS.read(record).payload)
    else:  # an older version, which is upcast
        side.add(decode(record.headers, record.value)[1])


async def _starts(bootstrap: str, topic: Topic, time_ms: int) -> dict[int, int]:
    """Returns the offset of the first record of each partition that is not older than ``time_ms``."""
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, topic)
        ends = await consumer.end_offsets(places)
        found = await consumer.offsets_for_times(dict.fromkeys(places, time_ms))
        return {
            place.partition: end if (entry := found.get(place)) is None else min(entry.offset, end)
            for place, end in ends.items()
        }
