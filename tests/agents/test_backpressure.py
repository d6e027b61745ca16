"""Sampling waits for training: by count, by id, and by what really stands in the log."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.backpressure import Backpressure, Outstanding, settled_by
from headrace.schemas.ids import uuid7
from headrace.schemas.log import open_producer, send
from headrace.schemas.model import Record
from headrace.schemas.records import Alert, Reason, Reference, Rejection, Stage, Step, TrainedGroup
from headrace.schemas.topics import REJECTED, STEPS, Topic
from headrace.schemas.wire import record_message

SOMEWHERE = Reference(partition=0, offset=0)


def step_of(*trajectory_ids: str) -> Step:
    group = TrainedGroup(
        group_id="g",
        group=SOMEWHERE,
        trajectory_ids=list(trajectory_ids),
        trajectories=[SOMEWHERE] * len(trajectory_ids),
    )
    return Step(run="r", step=1, version=1, groups=[group], config_sha256="", data_sha256="", metrics={})


def rejection_of(trajectory_id: str) -> Rejection:
    return Rejection(trajectory_id=trajectory_id, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=Reason.ALL_FAIL)


def test_a_step_settles_its_members_and_a_rejection_its_trajectory() -> None:
    assert settled_by(step_of("a", "b")) == ["a", "b"]
    assert settled_by(rejection_of("c")) == ["c"]
    assert settled_by(Alert(run="r", source="s", kind="k", message="m")) == []


def test_there_is_room_until_the_limit_and_again_when_something_is_settled() -> None:
    outstanding = Outstanding(3)
    for name in "abc":
        assert outstanding.has_room(1)
        outstanding.started(name)
    assert not outstanding.has_room(1)
    assert outstanding.settled("b")
    assert outstanding.has_room(1)
    assert not outstanding.has_room(2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_it_counts_ids_and_not_tellings(history: list[tuple[bool, int]]) -> None:
    outstanding, expected = Outstanding(100), set()
    for begins, number in history:
        if begins:
            outstanding.started(str(number))
            expected.add(number)
        else:
            outstanding.settled(str(number))
            expected.discard(number)
        assert len(outstanding) == len(expected)


def test_a_group_that_can_never_fit_is_an_error_and_no_endless_wait() -> None:
    with pytest.raises(ValueError, match="raise the limit"):
        Outstanding(4).has_room(8)
    with pytest.raises(ValueError, match="at least 1"):
        Outstanding(0)


async def write(bootstrap: str, topic: Topic, *records: Record) -> None:
    async with open_producer(bootstrap) as producer:
        for record in records:
            message = record_message(record, id=uuid7(), key="k", source="test", time_ms=0, subject="s")
            await (await send(producer, topic, message))


async def waits(room: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait([room], timeout=0.3)
    return not done


@pytest.mark.kafka
async def test_steps_and_rejections_in_the_log_make_room(kafka: str) -> None:
    await write(kafka, REJECTED, rejection_of("x0"))  # before: of another time, and not ours
    async with Backpressure(kafka, run="r", limit=4) as backpressure:
        await backpressure.room(4)
        for number in range(4):
            backpressure.started(f"x{number}")
        room = asyncio.create_task(backpressure.room(2))
        assert await waits(room)
        await write(kafka, STEPS, step_of("x1", "somebody else's"))
        assert await waits(room), "one place is not two"
        await write(kafka, REJECTED, rejection_of("x1"), rejection_of("x3"))
        await asyncio.wait_for(room, 20)
        assert backpressure.outstanding == 2
        await backpressure.forget("x0")
        await asyncio.wait_for(backpressure.room(3), 20)


@pytest.mark.kafka
async def test_a_record_that_cannot_be_read_does_not_stop_it(kafka: str) -> None:
    async with Backpressure(kafka, run="r", limit=1) as backpressure:
        backpressure.started("y")
        async with open_producer(kafka) as producer:
            await producer.send_and_wait(REJECTED.name, b"{", key=b"y")
        await write(kafka, REJECTED, rejection_of("y"))
        await asyncio.wait_for(backpressure.room(1), 20)


@pytest.mark.kafka
async def test_a_long_wait_is_said_in_the_log(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Backpressure(kafka, run="r", limit=1, report_after_s=0.05) as backpressure:
        backpressure.started("z")
        room = asyncio.create_task(backpressure.room(1))
        assert await waits(room)
        room.cancel()
    assert "no room for 1 more" in caplog.text


@pytest.mark.kafka
async def test_whoever_waits_when_following_ends_is_told(kafka: str) -> None:
    async with Backpressure(kafka, run="r", limit=1) as backpressure:
        backpressure.started("z")
        room = asyncio.create_task(backpressure.room(1))
        assert await waits(room)
    with pytest.raises(RuntimeError, match="not followed"):
        await room
