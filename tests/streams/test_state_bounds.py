"""Every record that score and group write, to their state or to a topic, fits its topic in the worst case."""

import pytest

from headrace.schemas.bounds import MAX_NAME, MAX_TIME_MS, MAX_TOTAL
from headrace.schemas.envelope import MAX_HEADER_BYTES, Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.finite import MAX_REWARD
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import MAX_HINT_TOKENS, MAX_HINTS, Component, Hint, Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.rollouts import RolloutCounts
from headrace.schemas.topics import REWARDS, TRAINING
from headrace.schemas.wire import Message, encode
from headrace.streams.grouping.continuations import MAX_CONTINUATIONS, continued_key
from headrace.streams.grouping.families import Families
from headrace.streams.grouping.group import group, output_message
from headrace.streams.grouping.group_policy import MAX_GROUP_SIZE
from headrace.streams.grouping.group_state import (
    GroupState,
    Rollouts,
    StoredMember,
    candidate_of,
    group_key,
    member_key,
    remembered,
    rollouts_key,
    to_record,
)
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from headrace.streams.raw import StoredRecord
from headrace.streams.rewards.spec import Verdict
from headrace.streams.runtime.owned_partition import STATE_BYTES
from headrace.streams.scoring.feedback_join import Join, JoinChanges, JoinLimits, TrajectoryArrival
from headrace.streams.scoring.score import reward_message
from headrace.streams.scoring.score_intake import take_feedback
from tests.streams.attempts import START_MS, rewarded

ROOM = 16 * 1024
"""Bytes for key and headers in addition to the value."""
WORST_NAME = "\x01" * MAX_NAME
"""Six bytes a character in JSON; a four-byte character takes four."""
WORST_TRACE = "00-" + "\x01" * (MAX_HEADER_BYTES - 3)


def worst_id(number: int) -> str:
    """A trajectory ID of 512 bytes, each of which JSON writes as six."""
    digits = "".join(chr(1 + int(digit)) for digit in f"{number:04d}")
    return digits + "\x01" * (512 - len(digits))


def worst_reward(number: int = 0, *, size: int | None = MAX_GROUP_SIZE, group_id: str = WORST_NAME) -> Reward:
    return rewarded(worst_id(number), 0.1 * (number % 2)).model_copy(
        update={
            "agent": WORST_NAME, "run": WORST_NAME, "tenant": WORST_NAME, "task_id": WORST_NAME, "group_id": group_id,
            "cohort_key": WORST_NAME, "group_size": size, "ended_ms": MAX_TIME_MS - 1,
            "parent_trajectory_id": WORST_NAME, "fork_group_id": WORST_NAME,
            "hints": [
                Hint(turn=n, token_ids=range(2**30, 2**30 + MAX_HINT_TOKENS), source=WORST_NAME, tenant=WORST_NAME)
                for n in range(MAX_HINTS)
            ],
            "components": {f"c{n}": Component(value=-MAX_REWARD, weight=-MAX_REWARD) for n in range(20)},
        }
    )  # fmt: skip


def worst_feedback(number: int) -> StoredRecord:
    given = FeedbackGiven(signal=WORST_NAME, value=-MAX_REWARD / 3, comment="c" * 500_000)
    id = f"{number:03d}" + "\x01" * (MAX_HEADER_BYTES - 3)
    envelope = Envelope(id, given.TYPE, "/s", START_MS, worst_id(0))
    message = encode(given, key="k", envelope=envelope)
    return StoredRecord("feedback", 0, 2**62 + number, MAX_TIME_MS - 1, b"k", message.value, message.headers)


def test_the_state_of_the_largest_trajectory_fits() -> None:
    limits = JoinLimits()
    join, changes = Join(limits), JoinChanges()
    for number in range(limits.max_feedback + 5):
        join.add_feedback(*take_feedback(worst_feedback(number)), changes)
    arrival = TrajectoryArrival(worst_id(0), 2**62, MAX_TIME_MS - 1, 10**9, origin=WORST_TRACE, blank=worst_reward())
    join.add_trajectory(arrival, changes)
    kept = changes.stored[worst_id(0)]
    assert kept is not None
    verdict = Verdict(None, WORST_NAME, {f"rubric-{n}": 1 / 3 for n in range(100)})
    kept = kept.model_copy(update={"verdicts": {f"term-{n}": verdict for n in range(20)}})
    assert len(kept.heard) == limits.max_feedback
    size = len(kept.model_dump_json(exclude_defaults=True).encode()) + len(worst_id(0).encode())
    assert size + ROOM < STATE_BYTES


def test_feedback_keeps_an_ordinary_id() -> None:
    given = FeedbackGiven(signal="s", value=1.0)

    def id_of(id: str) -> str:
        message: Message = encode(given, key="k", envelope=Envelope(id, given.TYPE, "/s", START_MS, "t"))
        return take_feedback(StoredRecord("feedback", 0, 0, START_MS, b"k", message.value, message.headers))[1].id

    assert id_of("0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3") == "0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3"
    assert len(id_of("x" * 200)) == 36
    assert id_of("x" * 200) == id_of("x" * 200) != id_of("x" * 201)


def test_the_largest_reward_fits() -> None:
    forged = worst_reward().model_copy(update={"defects": [Defect.BAD_EVENT] * 60_000})
    candidate = candidate_of(forged, WORST_TRACE)
    assert candidate.defects == ("bad_event",)
    key, value = to_record(member_key(WORST_NAME, worst_id(0)), StoredMember(WORST_NAME, candidate))
    assert len(key) + len(value or b"") + ROOM < STATE_BYTES
    assert len(reward_message(worst_reward()).value) + ROOM < REWARDS.max_bytes


@pytest.mark.parametrize("odd", [True, False])
def test_the_largest_group_is_decided_and_remembered(odd: bool) -> None:
    """With IDs that JSON writes as six bytes per byte the training record is too large: members are ``oversize``."""
    state: GroupState | None = None
    outputs = []
    for number in range(MAX_GROUP_SIZE):
        reward = worst_reward(number)
        reward = reward if odd else reward.model_copy(update={"trajectory_id": f"t{number:0511d}"})
        state, more = group(state, reward)
        outputs += more
    assert state is not None
    assert state.closed is not None
    key, value = to_record(group_key(state.group_id), state)
    assert len(key) + len(value or b"") + ROOM < STATE_BYTES
    if odd:
        assert {each.reason for each in outputs if isinstance(each, Rejection)} == {Reason.OVERSIZE}
        assert len(outputs) == MAX_GROUP_SIZE
    else:
        (training,) = outputs
        assert isinstance(training, TrainingGroup)
        assert len(output_message(training, START_MS)[1].value) + ROOM < TRAINING.max_bytes
    again = worst_reward(3)
    again = again if odd else again.model_copy(update={"trajectory_id": f"t{3:0511d}"})
    assert group(state, again) == (state, [])


def test_the_rewards_of_the_most_continuations_fit() -> None:
    family = (WORST_NAME, WORST_NAME, worst_id(0), WORST_NAME)
    families, changes = Families((), (), most=10**6), GroupChanges()
    for number in range(MAX_CONTINUATIONS + 1):
        families.hear(family, worst_id(number + 1), MAX_TOTAL, -MAX_REWARD / 3, MAX_TIME_MS, changes)
    key, value = to_record(continued_key(family), changes.stored[continued_key(family)])
    assert len(key) + len(value or b"") + ROOM < STATE_BYTES
    assert families.count(family) == MAX_CONTINUATIONS


def test_the_largest_uncounted_rollouts_fit() -> None:
    counts = RolloutCounts(scored=MAX_TOTAL, reward_sum=-MAX_REWARD * MAX_TOTAL / 3, groups=MAX_TOTAL)
    key, value = to_record(rollouts_key(WORST_NAME), Rollouts.of(WORST_NAME, counts))
    assert len(key) + len(value or b"") + ROOM < STATE_BYTES


def test_a_group_of_unknown_size_takes_at_most_the_largest_group_size() -> None:
    groups, changes = Groups(GroupLimits()), GroupChanges()
    for number in range(MAX_GROUP_SIZE + 3):
        groups.add(rewarded(f"t{number}", 0.5, size=None), START_MS, changes)
    rejected = [each.record for each in changes.outputs if isinstance(each.record, Rejection)]
    assert [each.reason for each in rejected] == [Reason.OVERSIZE] * 3
    changes = GroupChanges()
    groups.expire_due(START_MS + 10**9, changes)
    assert len(changes.outputs) == MAX_GROUP_SIZE


def test_ordinary_ids_are_remembered_as_they_are() -> None:
    for name in ("0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3", "t-1", "s/1:2@3"):
        assert remembered(name) == name
    for name in ("x" * 65, "\x01", "é", ""):
        assert len(remembered(name)) == 36
