"""Gathering of groups, prefetched and on demand, without a broker."""

import asyncio
from collections import deque

import pytest

from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.reference import Reference
from headrace.schemas.rollouts import RolloutCounts
from headrace.trainer.admission.admission import AdmissionRules, place_of
from headrace.trainer.admission.intake import TrainingRecord
from headrace.trainer.checkpoints.position import Position
from headrace.trainer.progress.progress import Progress
from headrace.trainer.steps.gather import Gatherer
from headrace.trainer.steps.step_record import loop_metrics
from tests.trainer.builders import member, segment, training_group, trajectory

BEGINNING = Position(version=0, offsets={})


class Log:
    """A fake intake: groups of one member each, in one partition."""

    def __init__(self):
        self.coming, self.trajectories, self.fault = deque(), {}, None
        self.read, self.groups = [], {}

    def write(self, name, *, version, rollouts=None):
        at = Reference(partition=0, offset=len(self.trajectories))
        attempt = trajectory(name, segment("cS", versions=[version]))
        self.trajectories[at.partition, at.offset] = attempt
        self.coming.append(TrainingRecord(at, training_group(name, [member(attempt, at=at)]), rollouts=rollouts))
        self.groups[place_of(at)] = self.coming[-1].group

    async def next_arrivals(self, at_most, *, timeout_s):
        await asyncio.sleep(0)
        if self.fault:
            raise self.fault
        return [self.coming.popleft() for _ in range(min(at_most, len(self.coming)))]

    async def reread(self, references):
        return {place_of(each): self.groups[place_of(each)] for each in references}

    async def resolve(self, places):
        self.read += places
        return {place: self.trajectories[place] for place in places}


class Committed:
    """Replaces disk and log: records what was committed, in order."""

    def __init__(self):
        self.positions = []

    async def __call__(self, position):
        self.positions.append(position)

    @property
    def announcements(self):
        return [each for position in self.positions for each in position.announcements]


def gatherer_of(log, committed, *, max_staleness=0):
    rules = AdmissionRules(run="run", max_staleness=max_staleness, vocabulary_size=50, max_positions=10)
    return Gatherer(log, rules, committed, Progress([]), groups_per_step=2)


def after(gathered, *, version):
    """Returns the trainer's position after ``gathered`` is trained, which makes ``version``."""
    return Position(version=version, offsets=gathered.offsets)


def names(gathered):
    return [group.group_id for group in gathered.groups]


def rejected(announcements):
    found = [Rejection.model_validate_json(each.payload) for each in announcements]
    return {each.trajectory_id: each.reason for each in found}


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_prefetched_groups_are_used_by_the_next_step_and_no_more_are_read():
    log, stop = Log(), asyncio.Event()
    for name in "abcde":
        log.write(name, version=0)
    gatherer = gatherer_of(log, Committed(), max_staleness=9)
    first = await gatherer.gather(BEGINNING, stop)
    gatherer.prefetch(0)
    await settle()
    assert len(log.coming) == 1, "two for this step, two for the next"
    read = len(log.read)
    second = await gatherer.gather(after(first, version=1), stop)
    assert len(log.read) == read, "nothing is left to be read once the step is trained"
    assert (names(first), first.offsets) == (["a", "b"], {0: 2})
    assert (names(second), second.offsets) == (["c", "d"], {0: 4})
    assert second.admitted_ages == [1, 1]


async def test_a_group_that_became_stale_during_a_step_is_rejected_and_replaced():
    log, committed, stop = Log(), Committed(), asyncio.Event()
    for name, version in (("a", 0), ("b", 0), ("old", 0), ("new", 1)):
        log.write(name, version=version)
    gatherer = gatherer_of(log, committed)
    first = await gatherer.gather(BEGINNING, stop)
    gatherer.prefetch(0)
    await settle()
    assert not log.coming, "both were looked at ahead"
    log.write("newer", version=1)
    second = await gatherer.gather(after(first, version=1), stop)
    assert (names(second), second.offsets) == (["new", "newer"], {0: 5})
    assert rejected(committed.announcements) == {"old": Reason.STALE}
    metrics = loop_metrics(second, {"tokens_read": 1.0}, train_s=1.0, since_step_s=1.0, before_s={})
    assert (metrics["rejected"], metrics["rejected_age_1"], metrics["admitted_age_0"]) == (1.0, 1.0, 2.0)


async def test_pending_groups_come_first_after_a_restart_and_are_admitted_again():
    log, committed, stop = Log(), Committed(), asyncio.Event()
    for name, version in (("a", 1), ("b", 0)):
        log.write(name, version=version)
    lenient = gatherer_of(log, committed, max_staleness=1)
    before = await lenient.gather(Position(version=1, offsets={}), stop)
    log.write("c", version=1)
    gathered = await gatherer_of(log, committed).gather(before.position, stop)  # a restart with stricter settings
    assert (names(gathered), gathered.offsets) == (["a", "c"], {0: 3})
    assert rejected(committed.announcements) == {"b": Reason.STALE}


async def test_tokens_of_a_future_version_are_of_unknown_age():
    log, committed, stop = Log(), Committed(), asyncio.Event()
    for name, version in (("a", 0), ("other engine's", 57), ("b", 0)):
        log.write(name, version=version)
    gathered = await gatherer_of(log, committed).gather(BEGINNING, stop)
    assert names(gathered) == ["a", "b"]
    assert rejected(committed.announcements) == {"other engine's": Reason.UNKNOWN_VERSION}
    metrics = loop_metrics(gathered, {"tokens_read": 1.0}, train_s=1.0, since_step_s=1.0, before_s={})
    assert metrics["rejected_age_unknown"] == 1.0


async def test_an_error_of_the_prefetch_is_raised_by_the_next_gather():
    log, stop = Log(), asyncio.Event()
    log.fault = OSError("the broker is gone")
    gatherer = gatherer_of(log, Committed())
    gatherer.prefetch(0)
    await settle()
    with pytest.raises(OSError, match="gone"):
        await gatherer.gather(BEGINNING, stop)


async def test_prefetched_groups_are_dropped_at_the_end_and_never_published():
    log, committed, stop = Log(), Committed(), asyncio.Event()
    for name in ("a", "b", "c"):
        log.write(name, version=0)
    gatherer = gatherer_of(log, committed)
    first = await gatherer.gather(BEGINNING, stop)
    gatherer.prefetch(5)  # stale at once
    await settle()
    await gatherer.close()
    assert committed.announcements == []
    assert first.offsets == {0: 2}


async def test_records_deleted_before_they_were_read_are_reported_and_counted_once():
    log, committed = Log(), Committed()
    log.coming.append(TrainingRecord(Reference(partition=0, offset=41), None, lost=40))
    for name in "ab":
        log.write(name, version=0)
    gathered = await gatherer_of(log, committed).gather(BEGINNING, asyncio.Event())
    (alert,) = [Alert.model_validate_json(each.payload) for each in committed.announcements if each.topic == "alerts"]
    assert (alert.kind, alert.details["records"]) == ("groups_lost", 40)
    assert "from 2 to 41" in alert.message
    assert gathered.lost == committed.positions[-1].lost == 40
    again = await gatherer_of(log, committed).gather(committed.positions[-1], asyncio.Event())
    assert again.lost == 40
    metrics = loop_metrics(gathered, {"tokens_read": 1.0}, train_s=1.0, since_step_s=1.0, before_s={})
    assert metrics["records_lost"] == 40


def rollouts(all_success):
    """Returns a trained group of two, after a number of groups in which every member succeeded."""
    return RolloutCounts(scored=2 + 2 * all_success, reward_sum=1 + 2 * all_success, groups=1 + all_success,
                         all_success=all_success)  # fmt: skip


def rollout_metrics_of(gathered):
    metrics = loop_metrics(gathered, {"tokens_read": 1.0}, train_s=1.0, since_step_s=1.0, before_s={})
    names = ("rollouts", "rollout_groups", "rollout_reward_mean", "zero_variance_share", "zero_variance_all_success")
    return tuple(metrics.get(name) for name in names)


async def test_a_step_counts_the_rollouts_of_its_groups_including_rejected_ones():
    log, committed, stop = Log(), Committed(), asyncio.Event()
    for name, version, successes in (("a", 0, 3), ("ahead", 7, 1), ("b", 0, 0), ("c", 0, 4), ("d", 0, None)):
        log.write(name, version=version, rollouts=None if successes is None else rollouts(successes))
    gatherer = gatherer_of(log, committed, max_staleness=9)
    first = await gatherer.gather(BEGINNING, stop)
    gatherer.prefetch(0)
    await settle()
    assert names(first) == ["a", "b"]
    assert rollout_metrics_of(first) == (14, 7, 11 / 14, 4 / 7, 4 / 7)
    second = await gatherer.gather(after(first, version=1), stop)
    assert rollout_metrics_of(second) == (10, 5, 0.9, 0.8, 0.8)


async def test_a_restart_anywhere_counts_the_same_rollouts():
    coming = [("a", 0, 3), ("ahead", 7, 1), ("b", 0, 0)]

    async def gathered_after(cuts):
        """Returns the groups of a step whose trainer is killed after each number of groups; the next one resumes."""
        log, committed = Log(), Committed()
        for name, version, successes in coming:
            log.write(name, version=version, rollouts=rollouts(successes))
        everything, position = list(log.coming), BEGINNING
        for cut in cuts:
            read = position.offsets.get(0, 0)
            log.coming = deque(everything[read:cut])
            gathering = asyncio.create_task(gatherer_of(log, committed).gather(position, asyncio.Event()))
            await settle()
            gathering.cancel()
            await asyncio.gather(gathering, return_exceptions=True)
            position = committed.positions[-1] if committed.positions else position
            position = Position.model_validate_json(position.model_dump_json())
        log.coming = deque(everything[position.offsets.get(0, 0) :])
        return await gatherer_of(log, committed).gather(position, asyncio.Event())

    undisturbed = await gathered_after([])
    assert rollout_metrics_of(undisturbed) == (14, 7, 11 / 14, 4 / 7, 4 / 7)
    for cuts in ([1], [2], [1, 2], [2, 2], [2, 3], [3, 3]):
        disturbed = await gathered_after(cuts)
        assert names(disturbed) == names(undisturbed)
        assert rollout_metrics_of(disturbed) == rollout_metrics_of(undisturbed), cuts


async def test_a_position_without_rollouts_is_read():
    old = Position.model_validate_json('{"version": 0, "offsets": {"0": 1}, "pending": []}')
    log = Log()
    for name, counts in (("gone", None), ("a", rollouts(1)), ("b", None)):
        log.write(name, version=0, rollouts=counts)
    log.coming.popleft()
    gathered = await gatherer_of(log, Committed()).gather(old, asyncio.Event())
    assert rollout_metrics_of(gathered) == (4, 2, 0.75, 0.5, 0.5)
