"""A committed offset that belongs to another log: of a deleted topic, or behind the end of a log that lost records."""

import re
from collections.abc import Mapping

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import EXPIRED, ExpiredRange, report_expired
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, FEEDBACK, REJECTED, REWARDS
from headrace.schemas.wire import decode
from headrace.streams.lost_offset import LOG_ENDS_EARLY, TOPIC_RECREATED, LostOffsetError
from headrace.streams.runtime import owned_partition
from headrace.streams.runtime.owned_partition import OwnedPartition
from headrace.streams.runtime.replaced_logs import replaced_logs
from tests.streams.clickhouse.test_deleted_topics import recreate
from tests.streams.runtime.test_owned_partition import output, ownership, values, values_of

PLACE = TopicPartition(REWARDS.name, 1)
IDS = st.dictionaries(st.sampled_from([REWARDS.name, FEEDBACK.name]), st.sampled_from("ab"))


@given(st.integers(min_value=0, max_value=9), st.integers(min_value=0, max_value=9), IDS, IDS)
def test_an_offset_stands_if_it_is_in_the_log_of_the_topic_that_was_read(
    offset: int, end: int, read_from: Mapping[str, str], ids: Mapping[str, str]
) -> None:
    found = replaced_logs({REWARDS.name: offset}, {PLACE: end}, read_from, ids)
    same = REWARDS.name not in read_from or read_from[REWARDS.name] == ids.get(REWARDS.name)
    stands = offset == 0 or (offset <= end and same)
    assert found == ([] if stands else [ReplacedLog(PLACE, offset, end)])


def test_a_first_start_has_no_offset_to_check() -> None:
    assert replaced_logs({}, {PLACE: 0}, {REWARDS.name: "a"}, {REWARDS.name: "b"}) == []


async def write(bootstrap: str, count: int) -> None:
    async with open_producer(bootstrap) as producer:
        for _ in range(count):
            await (await producer.send(REWARDS.name, b"x", partition=PLACE.partition))


async def alerts(bootstrap: str, source: str) -> list[tuple[str, int, str]]:
    """Kind, committed offset and id of each record with an alert about another log."""
    read = [
        (record, decode(record.headers, record.value)) async for record in read_to_end(bootstrap, ALERTS, decided=True)
    ]
    return [
        (alert.kind, alert.details["committed"], envelope.id)
        for _, (envelope, alert) in read
        if isinstance(alert, Alert) and alert.source == source and alert.kind in (TOPIC_RECREATED, LOG_ENDS_EARLY)
    ]


@pytest.mark.kafka
@pytest.mark.parametrize("count", [3, 12], ids=["shorter", "longer"])
async def test_a_recreated_topic_is_read_from_its_start_by_the_next_owner(kafka: str, count: int) -> None:
    """The new topic ends before the committed offset, or behind it, where nothing but the id shows it."""
    mine = await ownership(kafka, f"recreated-{count}")
    first = await OwnedPartition.acquire(mine, 1)
    await first.commit({"rewards": 9}, {b"a": b"1"}, [output(f"recreated-{count}")])
    await first.release()
    await recreate(kafka, REWARDS)
    await write(kafka, count)
    with pytest.raises(LostOffsetError, match=r"rewards\[1\] was deleted and created again.* up to offset 9"):
        await OwnedPartition.acquire(mine, 1)
    second = await OwnedPartition.acquire(mine, 1)
    assert (second.offsets, values_of(second)) == ({"rewards": 0}, {b"a": b"1"})
    await second.commit({"rewards": count}, {}, [])
    await second.release()
    third = await OwnedPartition.acquire(mine, 1)
    await third.release()
    assert third.offsets == {"rewards": count}
    ((kind, committed, _),) = await alerts(kafka, mine.group)
    assert (kind, committed) == (TOPIC_RECREATED, 9)
    assert await values(kafka, REJECTED, f"recreated-{count}".encode()) == [f"recreated-{count}".encode()]


@pytest.mark.kafka
@pytest.mark.parametrize("knows_the_id", [True, False])
async def test_an_offset_behind_the_log_end_is_refused_until_a_person_sets_it(
    kafka: str, knows_the_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a broker lost records, and with a state that an older version wrote."""
    mine = await ownership(kafka, f"cut-{knows_the_id}")
    with monkeypatch.context() as older:
        if not knows_the_id:
            older.setattr(owned_partition, "topic_ids", no_ids)
        first = await OwnedPartition.acquire(mine, 1)
        await first.commit({"rewards": 10**6}, {b"a": b"1"}, [])
        await first.release()
    for _ in range(2):
        with pytest.raises(LostOffsetError, match=rf"--group {mine.group} --topic rewards:1 --reset-offsets") as error:
            await OwnedPartition.acquire(mine, 1)
        assert re.search(
            r"rewards\[1\] ends at \d+, but cut-\w+ had processed it up to offset 1000000", str(error.value)
        )
    (first_alert, second_alert) = await alerts(kafka, mine.group)
    assert first_alert == second_alert, "the same alert, with the same id"
    assert first_alert[:2] == (LOG_ENDS_EARLY, 10**6)

    async with open_consumer(kafka, group=mine.group) as consumer:  # as kafka-consumer-groups.sh does
        consumer.assign([PLACE])
        await consumer.commit({PLACE: 2})
    third = await OwnedPartition.acquire(mine, 1)
    await third.commit({"rewards": 3}, {}, [])
    await third.release()
    fourth = await OwnedPartition.acquire(mine, 1)
    await fourth.release()
    assert (fourth.offsets, values_of(fourth)) == ({"rewards": 3}, {b"a": b"1"})


async def no_ids(*_: object) -> dict[str, str]:
    return {}


@pytest.mark.kafka
@pytest.mark.parametrize("is_recreated", [True, False])
async def test_what_the_client_finds_of_another_log_is_refused_like_at_an_acquisition(
    kafka: str, is_recreated: bool
) -> None:
    """The log may have grown past the committed offset since the client found its end before it."""
    mine = await ownership(kafka, f"found-{is_recreated}")
    owned = await OwnedPartition.acquire(mine, 1)
    await owned.commit({"rewards": 9}, {}, [])
    if is_recreated:
        await recreate(kafka, REWARDS)
    before = {} if is_recreated else {"rewards": 9}
    with pytest.raises(LostOffsetError, match="created again" if is_recreated else "--reset-offsets"):
        await owned.refuse(ReplacedLog(PLACE, 9, 3))
    await owned.release()
    again = await OwnedPartition.acquire(mine, 1)
    await again.release()
    assert again.offsets == (before or {"rewards": 0})
    assert [kind for kind, *_ in await alerts(kafka, mine.group)] == [
        TOPIC_RECREATED if is_recreated else LOG_ENDS_EARLY
    ]


@pytest.mark.kafka
async def test_losses_of_the_new_topic_are_counted_anew(kafka: str) -> None:
    mine = await ownership(kafka, "anew")
    owned = await OwnedPartition.acquire(mine, 1)
    await owned.commit({"rewards": 9}, {}, [])
    await owned.release()
    lost = ExpiredRange(PLACE, 2, 8)
    assert report_expired(mine.group, lost)
    await recreate(kafka, REWARDS)
    with pytest.raises(LostOffsetError):
        await OwnedPartition.acquire(mine, 1)
    assert report_expired(mine.group, lost), "other records, at the same offsets"
    assert EXPIRED.by_partition[mine.group, *PLACE] == 12
