"""Records sent through librdkafka to a real broker."""

import pytest

from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import OutgoingRecord
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import REWARDS, Topic
from headrace.streams.replay import delivery
from headrace.streams.replay.delivery import DeliveryFailed, open_delivery

pytestmark = pytest.mark.kafka


async def test_everything_arrives_in_order_however_little_may_be_unacknowledged(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "UNACKNOWLEDGED", 10)
    topic = Topic("delivered", "number", (), 2, "Numbers.")
    await create_topics(kafka, [topic])
    async with open_delivery(kafka) as opened:
        for start in range(0, 500, 50):
            await opened.send(
                OutgoingRecord("delivered", b"k", b"%d" % number, [("h", b"v")], 1000 + number, number % 2)
                for number in range(start, start + 50)
            )
    found = [record async for record in read_to_end(kafka, topic)]
    for partition in range(2):
        there = [record for record in found if record.partition == partition]
        assert [int(record.value or b"") for record in there] == list(range(partition, 500, 2))
        assert [record.timestamp for record in there] == list(range(1000 + partition, 1500, 2))
        assert {(record.key, tuple(record.headers)) for record in there} == {(b"k", (("h", b"v"),))}


async def test_a_record_that_the_broker_refuses_is_raised(kafka: str) -> None:
    # Numbers that do not compress: what does would fit.
    noise = b"".join(number.to_bytes(4) for number in range(0, 2**32, 2**32 // (REWARDS.max_bytes // 2)))

    async def send() -> None:
        async with open_delivery(kafka) as opened:
            await opened.send([OutgoingRecord("rewards", None, noise, [], 1, 0)])

    with pytest.raises(DeliveryFailed, match="too large"):
        await send()
