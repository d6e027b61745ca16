"""The sides of a comparison, read from their topics."""

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
    """What became of the trajectories of the replay ``name``: in the replay ``against`` or live, and in itself.

    Raises ``NoReplay`` where one of them is none, or was not finished.
    """
    replay = await find_replay(bootstrap, name)
    after = await _read_replay(bootstrap, replay)
    if against != LIVE:
        return await _read_replay(bootstrap, await find_replay(bootstrap, against)), after
    before = DiffSide(LIVE, frozenset(after.attempts))
    for topic in (REWARDS, TRAINING, REJECTED):
        # Nothing that was made of a trajectory is older than the trajectory.
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
    async for record in read_to_end(bootstrap, topic, start=starts):
        if stops is not None and record.offset >= stops.get(record.partition, 0):
            continue
        try:
            fold_record(side, record)
        except UnreadableRecord:
            # Whoever was to read it live has made it a dead letter: there is nothing to compare.
            continue


_REWARDS, _GROUPS, _REJECTIONS = TypedReader(Reward), TypedReader(TrainingGroup), TypedReader(Rejection)
_REWARD, _GROUP, _REJECTION = Reward.TYPE.encode(), TrainingGroup.TYPE.encode(), Rejection.TYPE.encode()


def fold_record(side: DiffSide, record: LogRecord) -> None:
    """Have ``side`` take notice of ``record``; raises :class:`UnreadableRecord`."""
    kind = next((value for name, value in record.headers if name == TYPE), None)
    if kind == _REWARD:
        side.add_reward(_REWARDS.read(record).payload)
    elif kind == _GROUP:
        side.add_group(_GROUPS.read(record).payload)
    elif kind == _REJECTION:
        side.add_rejection(_REJECTIONS.read(record).payload)
    else:  # an older version of them is brought forward
        side.add(decode(record.headers, record.value)[1])


async def _starts(bootstrap: str, topic: Topic, time_ms: int) -> dict[int, int]:
    """Offsets before which everything in ``topic`` is older."""
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, topic)
        ends = await consumer.end_offsets(places)
        found = await consumer.offsets_for_times(dict.fromkeys(places, time_ms))
        return {
            place.partition: end if (entry := found.get(place)) is None else min(entry.offset, end)
            for place, end in ends.items()
        }
