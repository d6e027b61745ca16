from collections import OrderedDict
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from headrace.schemas.headers import ROLLOUTS
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.reference import Reference
from headrace.schemas.rollouts import RolloutCounts
from headrace.schemas.topics import TRAINING
from headrace.schemas.wire import Message
from headrace.streams.grouping.group import output_message
from headrace.trainer.admission.intake import Intake, call_once, open_intake
from tests.trainer.builders import member, training_group
from tests.trainer.feed import attempt, feed_groups, feed_trajectories, message_of, send_groups


async def drain(intake, expected):
    """Returns all arrivals, up to ``expected`` records."""
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
async def test_a_repeated_group_arrives_once_even_across_a_restart(kafka):
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
async def test_rollout_counts_arrive_with_their_group_and_once(kafka):
    counts = RolloutCounts(scored=8, reward_sum=3.5, groups=2, all_fail=1)
    (first,) = await feed_groups(kafka, ["silent"], run="rollouts", partition=3)
    telling, damaged = (first.model_copy(update={"group_id": f"rollouts/{name}"}) for name in ("telling", "damaged"))
    topic, message = output_message(telling, 1, rollouts=counts)
    _, other = output_message(damaged, 1)
    async with open_producer(kafka) as producer:
        for each in (message, message, replace(other, headers=[*other.headers, (ROLLOUTS, b"{")])):
            await (await send(producer, topic, each, 3))
    async with open_intake(kafka, run="rollouts", window=1000) as intake:
        await intake.start({})
        found = []
        while len(found) < 3:
            found += [each for each in await intake.next_arrivals(100, timeout_s=0.2) if each.group or each.rollouts]
        assert not [each for each in await intake.next_arrivals(100, timeout_s=0.2) if each.group or each.rollouts]
    assert [(each.group.group_id, each.rollouts) for each in found] == [
        ("rollouts/silent", None), ("rollouts/telling", counts), ("rollouts/damaged", None)
    ]  # fmt: skip


@pytest.mark.kafka
async def test_other_runs_and_unreadable_records_are_skipped_and_reported(kafka):
    await feed_groups(kafka, ["x"], run="theirs", partition=2)
    async with open_producer(kafka) as producer:
        await (await send(producer, TRAINING, Message(b"k", b"{", []), 2))
    await feed_groups(kafka, ["y"], run="ours", partition=2)
    async with open_intake(kafka, run="ours", window=10) as intake:
        await intake.start({0: 0})
        arrivals = []
        while len(arrivals) < 3:  # among records of other tests in other partitions
            found = await intake.next_arrivals(100, timeout_s=0.2)
            arrivals += [each for each in found if each.reference.partition == 2]
    assert [each.group and each.group.group_id for each in arrivals] == [None, None, "ours/y"]
    assert [bool(each.problem) for each in arrivals] == [False, True, False]
    assert arrivals[0].reference == Reference(partition=2, offset=0)


async def delete_before(kafka, partition, offset):
    """Delete records immediately, as retention does later."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(TRAINING.name, partition): RecordsToDelete(offset)})
    finally:
        await admin.close()


async def until(intake, last):
    """Returns the run's arrivals up to its group ``last``, and the deleted records."""
    found = []
    for _ in range(100):
        found += [each for each in await intake.next_arrivals(100, timeout_s=0.2) if each.group or each.lost]
        if found and found[-1].group and found[-1].group.group_id == last:
            return found
    raise AssertionError(f"{last} did not arrive: {found}")


@pytest.mark.kafka
async def test_records_deleted_before_they_were_read_are_reported_at_a_start_and_later(kafka):
    await feed_groups(kafka, list("abcdef"), run="gone", partition=0)
    async with open_intake(kafka, run="gone", window=1000) as intake:
        await intake.start({0: 0})
        places = [each.reference.offset for each in await until(intake, "gone/f")]
    await delete_before(kafka, 0, places[3])

    async with open_intake(kafka, run="gone", window=1000) as intake:
        await intake.start({0: places[1]})
        lost, *found = await until(intake, "gone/f")
        assert (lost.reference, lost.group) == (Reference(partition=0, offset=places[3] - 1), None)
        assert lost.lost == places[3] - places[1]
        assert [each.group.group_id for each in found] == ["gone/d", "gone/e", "gone/f"]

        reading = intake._groups.assignment()
        intake._groups.pause(*reading)  # else the client fetches them before they are deleted
        await feed_groups(kafka, list("ghij"), run="gone", partition=0)
        await delete_before(kafka, 0, places[5] + 3)
        intake._groups.resume(*reading)
        lost, *found = await until(intake, "gone/j")
        assert lost.reference == Reference(partition=0, offset=places[5] + 2)
        assert lost.lost == 2
        assert all(each.group for each in found)

    async with open_intake(kafka, run="gone", window=1000) as intake:
        await intake.start({})
        assert not any(each.lost for each in await until(intake, "gone/j"))  # no trainer was due to read them


@pytest.mark.kafka
async def test_what_expires_of_a_log_that_was_replaced_is_reported(kafka):
    """The trainer's position lies behind the log end, as after the topic was recreated."""
    await feed_groups(kafka, ["a"], run="replaced", partition=1)
    async with open_intake(kafka, run="replaced", window=10, patience_s=0.1) as intake:
        place = TopicPartition(TRAINING.name, 1)
        end = (await intake._groups.end_offsets([place]))[place]
        await delete_before(kafka, 1, end)
        await intake.start({1: 10**6})
        while await intake._groups.position(place) != end:
            await intake.next_arrivals(100, timeout_s=0.2)
        reading = intake._groups.assignment()
        intake._groups.pause(*reading)  # else the client fetches them before they are deleted
        await feed_groups(kafka, list("bcde"), run="replaced", partition=1)
        await delete_before(kafka, 1, end + 2)
        intake._groups.resume(*reading)
        lost, *found = await until(intake, "replaced/e")
        assert (lost.reference, lost.lost) == (Reference(partition=1, offset=end + 1), 2)
        assert found[-1].group.group_id == "replaced/e"


def test_groups_of_another_run_are_skipped_and_named_once_while_there_is_no_own_one(caplog):
    def arrived(name, run):
        group = training_group(name, [member(attempt(name, run=run, seed=0))], run=run)
        message = message_of(group, id=name, key=name)
        record = SimpleNamespace(partition=0, offset=next(offsets), headers=message.headers, value=message.value)
        return intake._arrival(record).group

    offsets = count()
    intake = Intake("b:1", SimpleNamespace(), SimpleNamespace(), run="by-name", window=10, patience_s=1.0, answer_s=1.0,
                    retry=call_once)  # fmt: skip
    intake._seen[0] = OrderedDict()
    assert [arrived("a", "by-default"), arrived("b", "by-default")] == [None, None]
    assert arrived("c", "by-name") is not None
    assert arrived("d", "another") is None
    assert caplog.messages == [
        "groups of run by-default are skipped: this trainer trains run by-name, of which no group has arrived yet. If "
        "they are meant for it, start the stack and the samplers with --run by-name"
    ]
