import pytest

from headrace.schemas.log import open_producer, send
from headrace.schemas.records.reference import Reference
from headrace.schemas.topics import TRAINING
from headrace.schemas.wire import Message
from headrace.trainer.admission.intake import open_intake
from tests.trainer.feed import attempt, feed_groups, feed_trajectories, send_groups


async def drain(intake, expected):
    """Everything that arrives, until ``expected`` records have."""
    arrivals = []
    for _ in range(100):
        arrivals += await intake.next_arrivals(expected - len(arrivals), timeout_s=0.2)
        if len(arrivals) >= expected:
            break
    return arrivals


@pytest.mark.kafka
async def test_references_lead_to_committed_trajectories(kafka):
    attempts = [attempt(f"resolve/{number}", run="resolve", seed=number) for number in range(40)]
    places = await feed_trajectories(kafka, attempts)
    async with open_intake(kafka, run="resolve", window=10, patience_s=4.0) as intake:
        await intake.start({})
        wanted = [(each.partition, each.offset) for each in places.values()]
        beyond = (0, max(offset for partition, offset in wanted if partition == 0) + 1000)
        aborted = (0, min(offset for partition, offset in wanted if partition == 0) - 2)
        found = await intake.resolve([*wanted, beyond, aborted, (99, 0)])
    assert {place: each.trajectory_id for place, each in found.items()} == {
        (place.partition, place.offset): name for name, place in places.items()
    }
    assert found[wanted[3]] == attempts[3]


@pytest.mark.kafka
async def test_a_group_that_stands_in_the_log_twice_comes_once_even_over_a_restart(kafka):
    first, second, third = await feed_groups(kafka, ["a", "b", "c"], run="twice", partition=1)
    await send_groups(kafka, [second, first, second], partition=1)
    async with open_intake(kafka, run="twice", window=1000) as intake:
        await intake.start({})
        arrivals = await drain(intake, 6)
    assert [each.group and each.group.group_id for each in arrivals] == ["twice/a", "twice/b", "twice/c", *[None] * 3]
    assert {each.reference.partition for each in arrivals} == {1}

    after_second = arrivals[1].reference.offset + 1
    async with open_intake(kafka, run="twice", window=1000) as intake:
        await intake.start({1: after_second})
        again = await drain(intake, 4)
    assert [each.group and each.group.group_id for each in again] == ["twice/c", None, None, None]
    assert again[0].group == third


@pytest.mark.kafka
async def test_other_runs_and_unreadable_records_pass_by_and_are_counted(kafka):
    await feed_groups(kafka, ["x"], run="theirs", partition=2)
    async with open_producer(kafka) as producer:
        await (await send(producer, TRAINING, Message(b"k", b"{", []), 2))
    await feed_groups(kafka, ["y"], run="ours", partition=2)
    async with open_intake(kafka, run="ours", window=10) as intake:
        await intake.start({0: 0})
        arrivals = [each for each in await drain(intake, 3 + 6) if each.reference.partition == 2]
    assert [each.group and each.group.group_id for each in arrivals] == [None, None, "ours/y"]
    assert [bool(each.problem) for each in arrivals] == [False, True, False]
    assert arrivals[0].reference == Reference(partition=2, offset=0)
