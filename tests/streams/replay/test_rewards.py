"""Rescoring with feedback and verdicts matches live scoring in memory, in whatever order the topics are read."""

from collections.abc import AsyncIterator, Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import FEEDBACK, REWARDS, TRAJECTORIES
from headrace.schemas.wire import decode, encode
from headrace.streams.processors.score_hook import Verdicts
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.replay.order import StreamTimeOrder
from headrace.streams.replay.rewards import UNREADABLE, WAITING, Rescoring
from headrace.streams.replay.verdicts import asked, recorded
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import TIMEOUT, Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import NOT_JUDGED, JudgedTerm, RewardSpec, Verdict
from headrace.streams.rules import Rules
from headrace.streams.scoring.score import score
from tests.streams.attempts import START_MS, attempt, trajectory_message
from tests.streams.judged_rewards import HASTY, JUDGED, LIKED, WINDOW_MS
from tests.streams.processors.at_work import AtWork

Spoken = tuple[str, int]
"""(trajectory, milliseconds after the start)."""


def came(name: str, after_ms: int, offset: int) -> StoredRecord:
    """A trajectory that arrived ``after_ms``."""
    message = trajectory_message(attempt(name, group=None, ended_ms=START_MS + after_ms))
    return StoredRecord(TRAJECTORIES.name, 0, offset, START_MS + after_ms, message.key, message.value, message.headers)


def said(name: str, after_ms: int, offset: int) -> StoredRecord:
    """Feedback of 1 on a trajectory."""
    fact, time_ms = FeedbackGiven(signal="accepted", value=1.0), START_MS + after_ms
    envelope = Envelope(derived_id("said", name, after_ms), fact.TYPE, "/test", time_ms, name)
    message = encode(fact, key=name, envelope=envelope)
    return StoredRecord(FEEDBACK.name, 0, offset, time_ms, message.key, message.value, message.headers)


def in_order(trajectories: Iterable[Spoken], feedback: Iterable[Spoken]) -> list[StoredRecord]:
    """Both topics in stream time."""
    made = {
        TRAJECTORIES.name: [
            came(*each, offset) for offset, each in enumerate(sorted(trajectories, key=lambda x: x[1]))
        ],
        FEEDBACK.name: [said(*each, offset) for offset, each in enumerate(sorted(feedback, key=lambda x: x[1]))],
    }
    order: StreamTimeOrder[str, StoredRecord] = StreamTimeOrder(made)
    for topic, records in made.items():
        order.offer(topic, [(record.timestamp, record) for record in records])
        order.end(topic)
    return [record for _, _, record in order.ready()]


def rescored(
    records: Iterable[StoredRecord], spec: RewardSpec, end_ms: int, verdicts: Verdicts | None = None
) -> tuple[list[Outgoing], Rescoring]:
    rescoring = Rescoring(Rules(Rewards({}, spec)), verdicts or {})
    made: list[Outgoing] = []
    for record in records:
        made += [*rescoring.pass_time(record.timestamp), *rescoring.take(record)]
    return made + rescoring.finish(end_ms), rescoring


NAMES = st.sampled_from(["a", "b", "c"])
MOMENTS = st.integers(0, 3 * WINDOW_MS)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, MOMENTS, max_size=3),
    st.sets(st.tuples(NAMES, MOMENTS), max_size=6),
    st.sampled_from([LIKED, HASTY, JUDGED]),
)
def test_a_replay_matches_live_scoring(trajectories: dict[str, int], feedback: set[Spoken], spec: RewardSpec) -> None:
    records, end_ms = in_order(trajectories.items(), feedback), START_MS + 10 * WINDOW_MS
    live = AtWork(Rewards({}, spec))
    expected = [each for record in records for each in (*live.advance(record.timestamp), *live.take(record))]
    expected += live.advance(end_ms)
    assert rescored(records, spec, end_ms)[0] == expected


def test_trajectories_waiting_for_feedback_at_the_end_are_counted() -> None:
    made, rescoring = rescored(in_order([("a", 0)], [("a", 500)]), LIKED, START_MS + WINDOW_MS)
    assert (made, rescoring.counts[WAITING]) == ([], 1)
    made, rescoring = rescored(in_order([("a", 0)], [("a", 500)]), LIKED, START_MS + WINDOW_MS + 1)
    assert ([reward_in(each).total for each in made], rescoring.counts[WAITING]) == ([1.0], 0)


def reward_in(outgoing: Outgoing) -> Reward:
    _, reward = decode(outgoing.message.headers, outgoing.message.value)
    assert isinstance(reward, Reward)
    return reward


def terms() -> list[JudgedTerm]:
    return list(JUDGED.judges)


async def stream(items: Iterable[Reward]) -> AsyncIterator[Reward]:
    for item in items:
        yield item


async def records_of(items: Iterable[StoredRecord]) -> AsyncIterator[StoredRecord]:
    for item in items:
        yield item


def live_reward(verdict: Verdict | None) -> Reward:
    """The reward that live scoring wrote for trajectory ``a``, whose judge gave ``verdict``."""
    verdicts = {"helpful": verdict} if verdict else {}
    return score(
        attempt("a", group=None), Reference(partition=0, offset=0), rewards=Rewards({}, JUDGED), verdicts=verdicts
    )


GOOD = Verdict(0.75, None, {"task": 1.0, "user": 0.5, "disagreement": 0.5})


async def test_a_recorded_verdict_is_reused() -> None:
    verdicts = await recorded(terms(), stream([live_reward(GOOD)]))
    (made,), _ = rescored([came("a", 0, 0)], JUDGED, START_MS, verdicts)
    assert reward_in(made).total == 0.75
    assert reward_in(made).components == live_reward(GOOD).components


async def test_a_verdict_by_other_rubrics_is_not_reused() -> None:
    other = Verdict(0.75, None, {"politeness": 0.75})
    verdicts = await recorded(terms(), stream([live_reward(other)]))
    (made,), _ = rescored([came("a", 0, 0)], JUDGED, START_MS, verdicts)
    assert (reward_in(made).total, reward_in(made).unscored) == (None, NOT_JUDGED)


async def test_the_reason_for_a_missing_verdict_is_reused() -> None:
    verdicts = await recorded(terms(), stream([live_reward(Verdict(None, TIMEOUT)), live_reward(GOOD)]))
    (made,), rescoring = rescored([came("a", 0, 0)], JUDGED, START_MS, verdicts)
    assert (reward_in(made).unscored, rescoring.counts[f"unscored_{TIMEOUT}"]) == (TIMEOUT, 1)


class Fives:
    """A judge that always gives the highest score and counts its questions."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, questions: Sequence[Question], *, within_s: float) -> list[Answer]:
        self.asked += len(questions)
        return [Answer(question.rubric.name, "5") for question in questions]


async def test_judges_are_asked_only_about_scorable_trajectories() -> None:
    records = [came(name, 0, offset) for offset, name in enumerate("abc")]
    records.append(StoredRecord(TRAJECTORIES.name, 0, 3, START_MS, b"d", b"{", records[0].headers))
    judge = Fives()
    verdicts = await asked(records_of(records), Rewards({}, JUDGED), judge, wait_s=1.0)
    made, rescoring = rescored(records, JUDGED, START_MS, verdicts)
    totals = [reward_in(each).total for each in made if each.topic is REWARDS]
    assert totals == [verdicts[name]["helpful"].value for name in "abc"]
    assert rescoring.counts[UNREADABLE] == 1
