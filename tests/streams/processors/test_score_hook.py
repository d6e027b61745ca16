"""Due rewards are decided even if their trajectory can no longer be read."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import pytest

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.read_back import Place, read_back
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAJECTORIES, Topic
from headrace.streams.processors.score import ScoreOperator
from headrace.streams.processors.score_hook import Decider
from headrace.streams.raw import LogRecord
from headrace.streams.rewards.registry import Rewards
from headrace.streams.runtime.processor import Outside, ReadBack
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, Join, JoinLimits
from headrace.streams.scoring.score_intake import take_feedback
from tests.streams.attempts import START_MS, attempt, trajectory_message
from tests.streams.judged_rewards import LIKED, WINDOW_MS
from tests.streams.scoring.test_score_intake import feedback_message, record

CLOSED_MS = START_MS + WINDOW_MS + 1_000


LIKING = Rewards({}, LIKED)


async def decide(operator: ScoreOperator, read: ReadBack) -> None:
    await Decider(LIKING, Outside(read, batch=2)).complete({1: operator})


@pytest.mark.kafka
async def test_an_expired_trajectory_has_an_unscored_reward(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        message = trajectory_message(attempt("there"))
        there = await (await send(producer, TRAJECTORIES, message, 1))
    score, read = ScoreOperator(LIKING, Join(JoinLimits())), partial(read_back, kafka)
    for name, offset in (("there", there.offset), ("gone", there.offset + 1_000)):
        score.process(record(trajectory_message(attempt(name)), offset=offset))
        score.process(record(feedback_message(name), "feedback", offset=7))
    score.flush()
    score.advance(CLOSED_MS, 100)
    await decide(score, read)
    made = {each.reward.trajectory_id: each.reward for each in score.changes.decided}
    assert (made["there"].total, made["there"].unscored) == (1.0, None)
    assert (made["gone"].total, made["gone"].unscored, made["gone"].group_id) == (None, TRAJECTORY_GONE, "g")
    assert made["gone"].feedback == made["there"].feedback
    score.flush()
    # Revisions of expired trajectories are only counted: the earlier reward stays.
    for name in ("there", "gone"):
        subject, feedback = take_feedback(record(feedback_message(name), "feedback", timestamp=CLOSED_MS, offset=8))
        score.join.add_feedback(subject, replace(feedback, id="f2"), score.changes)
    await decide(score, read)
    assert [(each.reward.trajectory_id, each.reward.revision) for each in score.changes.decided] == [("there", 1)]
    assert score.limits_reached[TRAJECTORY_GONE] == 2


async def test_another_or_an_unreadable_record_at_the_offset_counts_as_expired() -> None:
    """After a topic was recreated, or with code that reads less than the record holds: no wrong reward, and no worker
    ends.
    """
    places = {
        (1, 5): record(trajectory_message(attempt("another", outcome=0.0)), offset=5),
        (1, 6): replace(record(trajectory_message(attempt("torn")), offset=6), value=b"{"),
        (1, 7): record(trajectory_message(attempt("there")), offset=7),
    }

    async def read(topic: Topic, wanted: Collection[Place]) -> Mapping[Place, LogRecord]:
        return {place: each for place, each in places.items() if place in wanted}

    score = ScoreOperator(LIKING, Join(JoinLimits()))
    for name, offset in (("mine", 5), ("torn", 6), ("there", 7)):
        score.process(record(trajectory_message(attempt(name)), offset=offset))
        score.process(record(feedback_message(name), "feedback", offset=7))
    score.flush()
    score.advance(CLOSED_MS, 100)
    await decide(score, read)
    made = {each.reward.trajectory_id: each.reward.unscored for each in score.changes.decided}
    assert made == {"mine": TRAJECTORY_GONE, "torn": TRAJECTORY_GONE, "there": None}
