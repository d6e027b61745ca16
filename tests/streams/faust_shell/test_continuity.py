"""A record that Faust skipped is detected, and an offset without a record is not mistaken for one."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from faust.types import TP

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import REWARDS
from headrace.streams.faust_shell.continuity import Continuity
from headrace.streams.faust_shell.faust_app import new_app, skipped_offsets
from headrace.streams.raw import StoredRecord
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import rewarded

pytestmark = pytest.mark.kafka

PLACE = TP(REWARDS.name, 3)


@pytest.mark.parametrize(
    ("fetched", "taken", "lost"),
    [
        ((2, 3, 4), (2, 3, 2, 3, 4), None),
        ((2, 3, 4), (3, 4), 2),
        ((2, 3, 4), (2, 4), 3),
        # The client knows that 3 and 4 hold no records, and the log is not read.
        ((2, 5), (2, 5), None),
        # The client knows nothing of an offset that it never read.
        ((3, 5), (3, 5), 2),
        # An offset without a record does not excuse a skipped record before it.
        ((2, 3, 5), (2, 5), 3),
    ],
)
async def test_a_record_that_faust_skipped_is_detected(
    kafka: str, tmp_path: Path, fetched: tuple[int, ...], taken: tuple[int, ...], lost: int | None
) -> None:
    first = 0
    async with open_producer(kafka) as producer:
        for number in range(6):
            message = reward_message(rewarded(f"hole-{number}", group=None))
            sent = await (await send(producer, REWARDS, message, PLACE.partition))
            first = sent.offset if number == 0 else first
    app = new_app("holes", kafka, tmp_path, batch=10)
    continuity = Continuity(app, kafka, REWARDS)
    continuity.begin({PLACE.partition: first + 2})
    skipped_offsets(app).note(PLACE, [first + offset for offset in fetched])
    with (
        nullcontext()
        if lost is None
        else pytest.raises(RuntimeError, match=f"instead of {first + lost}: it lost records")
    ):
        highest = -1
        for offset in taken:
            record = StoredRecord(REWARDS.name, PLACE.partition, first + offset, 0, None, None, ())
            assert await continuity.is_next(record) is (offset > highest), "a repeated record is dropped"
            highest = max(highest, offset)


async def test_after_a_rebalance_the_log_is_read_again(kafka: str, tmp_path: Path) -> None:
    async with open_producer(kafka) as producer:
        messages = [reward_message(rewarded(f"again-{number}", group=None)) for number in range(3)]
        offsets = [(await (await send(producer, REWARDS, each, PLACE.partition))).offset for each in messages]
    app = new_app("again", kafka, tmp_path, batch=10)
    continuity = Continuity(app, kafka, REWARDS)
    continuity.begin({PLACE.partition: offsets[0]})
    skipped_offsets(app).note(PLACE, [offsets[0], offsets[2]])
    await continuity.is_next(StoredRecord(REWARDS.name, PLACE.partition, offsets[0], 0, None, None, ()))
    continuity.end()
    continuity.begin({PLACE.partition: offsets[1]})
    with pytest.raises(RuntimeError, match=f"instead of {offsets[1]}: it lost records"):
        await continuity.is_next(StoredRecord(REWARDS.name, PLACE.partition, offsets[2], 0, None, None, ()))
