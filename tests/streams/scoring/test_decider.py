"""What is due is decided, also where the trajectory can no longer be read."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.faust_shell.outage import PartitionsRevoked
from headrace.streams.raw import StoredRecord
from headrace.streams.rewards.judge_client import Judging
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.scoring.decider import Decider
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, Changes, Join, JoinLimits
from headrace.streams.scoring.score_intake import take_feedback, take_trajectory
from tests.streams.attempts import START_MS, attempt, trajectory_message
from tests.streams.judged_rewards import JUDGED, LIKED, WINDOW_MS
from tests.streams.scoring.test_score_intake import feedback_message, record

CLOSED_MS = START_MS + WINDOW_MS + 1_000


def decider(bootstrap: str, spec: RewardSpec, judging: Judging | None = None) -> Decider:
    return Decider(bootstrap, Rewards({}, spec), batch=2, judging=judging, judge_wait_s=60)


def arrive(join: Join, stored: StoredRecord, spec: RewardSpec, changes: Changes) -> None:
    taken = take_trajectory(stored, Rewards({}, spec))
    assert not isinstance(taken, list)
    join.add_trajectory(taken[0], changes)


@pytest.mark.kafka
async def test_a_trajectory_that_is_gone_has_a_reward_that_says_so(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        message = trajectory_message(attempt("there"))
        there = await (await send(producer, TRAJECTORIES, message, 1))
    join, changes = Join(JoinLimits()), Changes()
    for name, offset in (("there", there.offset), ("gone", there.offset + 1_000)):
        arrive(join, record(trajectory_message(attempt(name)), offset=offset), LIKED, changes)
        join.add_feedback(*take_feedback(record(feedback_message(name), "feedback", offset=7)), changes)
    join.pass_time(CLOSED_MS, changes)
    await decider(kafka, LIKED).decide({1: changes}, {1: join}, {}, asyncio.Event())
    made = {each.reward.trajectory_id: each.reward for each in changes.decided}
    assert (made["there"].total, made["there"].unscored) == (1.0, None)
    assert (made["gone"].total, made["gone"].unscored, made["gone"].group_id) == (None, TRAJECTORY_GONE, "g")
    assert made["gone"].feedback == made["there"].feedback
    # Revisions of what is gone are counted: the reward that was given stays.
    late = Changes()
    for name in ("there", "gone"):
        subject, feedback = take_feedback(record(feedback_message(name), "feedback", timestamp=CLOSED_MS, offset=8))
        join.add_feedback(subject, replace(feedback, id="f2"), late)
    await decider(kafka, LIKED).decide({1: late}, {1: join}, {}, asyncio.Event())
    assert [(each.reward.trajectory_id, each.reward.revision) for each in late.decided] == [("there", 1)]
    assert join.counts[TRAJECTORY_GONE] == 2


async def test_what_stands_in_its_place_and_is_another_or_unreadable_is_gone_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that was made anew, or code that reads less than what came: no wrong reward, and no worker ends."""
    places = {
        (1, 5): record(trajectory_message(attempt("another", outcome=0.0)), offset=5),
        (1, 6): replace(record(trajectory_message(attempt("torn")), offset=6), value=b"{"),
        (1, 7): record(trajectory_message(attempt("there")), offset=7),
    }

    async def read(*_: object) -> object:
        return places

    monkeypatch.setattr("headrace.streams.scoring.decider.read_back", read)
    join, changes = Join(JoinLimits()), Changes()
    for name, offset in (("mine", 5), ("torn", 6), ("there", 7)):
        arrive(join, record(trajectory_message(attempt(name)), offset=offset), LIKED, changes)
        join.add_feedback(*take_feedback(record(feedback_message(name), "feedback", offset=7)), changes)
    join.pass_time(CLOSED_MS, changes)
    await decider("nowhere:1", LIKED).decide({1: changes}, {1: join}, {}, asyncio.Event())
    made = {each.reward.trajectory_id: each.reward.unscored for each in changes.decided}
    assert made == {"mine": TRAJECTORY_GONE, "torn": TRAJECTORY_GONE, "there": None}


async def test_judges_do_not_hold_up_a_rebalance() -> None:
    class Hangs:
        async def ask(self, questions: Sequence[Question], *, within_s: float) -> list[Answer]:
            await asyncio.sleep(within_s)
            raise AssertionError("nobody waits for it")

    revoked, changes, join = asyncio.Event(), Changes(), Join(JoinLimits())
    stored = record(trajectory_message(attempt("t", answer="a")))
    arrive(join, stored, JUDGED, changes)
    hand = {(1, stored.offset): attempt("t", answer="a")}
    asking = asyncio.ensure_future(decider("nowhere:1", JUDGED, Hangs()).decide({1: changes}, {1: join}, hand, revoked))
    await asyncio.sleep(0)
    revoked.set()
    with pytest.raises(PartitionsRevoked):
        await asyncio.wait_for(asking, 10)
