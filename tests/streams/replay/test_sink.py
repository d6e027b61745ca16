"""What an interrupted replay left is seen again before anything is added to it, in bounded memory."""

from collections.abc import AsyncIterator, Iterable

import pytest

from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.side_topics import LIVE, side_topic
from headrace.schemas.topics import REWARDS, TRAINING
from headrace.schemas.wire import Message
from headrace.streams.raw import Outgoing
from headrace.streams.replay import sink as replay_sink
from headrace.streams.replay.delivery import open_delivery
from headrace.streams.replay.placed import Placed
from headrace.streams.replay.sink import ReplayRefused, ReplaySink

pytestmark = pytest.mark.kafka

PARTITIONS = {REWARDS: 2, TRAINING: 1}


def placed(partition: int, numbers: Iterable[int], size: int = 1) -> list[Placed]:
    """Records of ``size`` bytes and a number."""
    messages = [Message(b"k", b"x" * size + b"%d" % number, [("h", b"v")]) for number in numbers]
    return [Placed(Outgoing(REWARDS, message, 1_000), partition) for message in messages]


async def begun(kafka: str, name: str, there: Iterable[Placed]) -> AsyncIterator[ReplaySink]:
    """The sink of a replay that was interrupted when it had written ``there``."""
    async with open_delivery(kafka) as delivery:
        first = ReplaySink(delivery, name, PARTITIONS, LIVE)
        await first.prepare(kafka)
        await first.write(there)
    async with open_delivery(kafka) as delivery:
        sink = ReplaySink(delivery, name, PARTITIONS, LIVE)
        await sink.prepare(kafka)
        yield sink


async def written(kafka: str, name: str) -> int:
    return len([record async for record in read_to_end(kafka, side_topic(REWARDS, name, 2))])


async def test_nothing_is_added_before_all_that_is_there_was_seen(kafka: str) -> None:
    async for sink in begun(kafka, "seen", [*placed(0, range(3)), *placed(1, range(2))]):
        await sink.write([*placed(1, range(9)), *placed(0, range(2))])
        assert await written(kafka, "seen") == 5
        await sink.write(placed(0, [2, 3]))
        found = await sink.finish(kafka)
        assert [entry.records for entry in found] == [4, 9, 0]
    assert await written(kafka, "seen") == 13


@pytest.mark.parametrize(("limit", "most"), [("_HELD", 20), ("_HELD_BYTES", 20_000)])
async def test_what_is_held_meanwhile_is_bounded_in_records_and_in_bytes(
    kafka: str, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(replay_sink, limit, most)
    async for sink in begun(kafka, f"held{limit}", placed(0, [0])):
        await sink.write(placed(1, range(19), size=900))
        with pytest.raises(ReplayRefused, match=r"rewards\[1\] holds other records"):
            await sink.write(placed(1, range(19, 40), size=900))
    assert await written(kafka, f"held{limit}") == 1
