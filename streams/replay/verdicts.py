"""Judges' verdicts for a range: those recorded in live rewards, or new ones."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import REWARDS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.processors.score_hook import Verdicts
from headrace.streams.raw import LogRecord
from headrace.streams.rewards.incomplete import hiding_defect
from headrace.streams.rewards.judge import DISAGREEMENT
from headrace.streams.rewards.judge_inquiry import inquiries, verdicts
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import ERROR, NOTHING_TO_JUDGE, TIMEOUT, UNREADABLE, Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import JudgedTerm, Verdict
from headrace.streams.typed_record import typed

_FAILED = frozenset({TIMEOUT, ERROR, UNREADABLE, NOTHING_TO_JUDGE})

AT_ONCE = 256
"""Trajectories whose judges are called concurrently."""


class Judging(Protocol):
    """Answers questions, as the client of a judge does."""

    async def ask(self, questions: Sequence[Question], *, within_s: float) -> list[Answer]:
        """Answer each question, in order; ``judge_timeout`` if there is no answer within ``within_s`` seconds."""


async def recorded(terms: Sequence[JudgedTerm], rewards: AsyncIterator[Reward]) -> Verdicts:
    """Trajectory id → component → verdict, from rewards that live scoring wrote; the first of each counts.

    A component of the same name is the same verdict where its details name the same rubrics. Some 500 bytes each.
    """
    found: dict[str, dict[str, Verdict]] = defaultdict(dict)
    async for reward in rewards:
        for term in terms:
            verdict = _recorded(term, reward)
            if verdict is not None:
                found[reward.trajectory_id].setdefault(term.name, verdict)
    return found


async def read_rewards(bootstrap: str) -> AsyncIterator[Reward]:
    """Every readable live reward. Raises :class:`RangeExpired` if retention deletes some before they are read."""
    async for record in read_to_end(bootstrap, REWARDS, whole=True):
        try:
            yield typed(record, Reward)[1]
        except UnreadableRecord:
            continue  # It is in dead-letters.


def _recorded(term: JudgedTerm, reward: Reward) -> Verdict | None:
    component = reward.components.get(term.name)
    if component is None:
        return Verdict(None, reward.unscored) if reward.unscored in _FAILED else None
    if component.details.keys() - {DISAGREEMENT} != {rubric.name for rubric in term.judge.rubrics}:
        return None
    return Verdict(component.value, None, component.details)


async def asked(records: AsyncIterator[LogRecord], rewards: Rewards, judging: Judging, *, wait_s: float) -> Verdicts:
    """New verdicts for the trajectories in ``records``; ``wait_s`` seconds for each ``AT_ONCE`` of them."""
    found: dict[str, Mapping[str, Verdict]] = {}
    batch: list[Trajectory] = []
    async for record in records:
        try:
            trajectory = typed(record, Trajectory)[1]
        except UnreadableRecord:
            continue  # It becomes a dead letter of the replay.
        if rewards.of(trajectory).judges and not hiding_defect(trajectory):
            batch.append(trajectory)
        if len(batch) == AT_ONCE:
            found |= await _asked(batch, rewards, judging, wait_s)
            batch = []
    return found | await _asked(batch, rewards, judging, wait_s)


async def _asked(
    batch: Sequence[Trajectory], rewards: Rewards, judging: Judging, wait_s: float
) -> dict[str, Mapping[str, Verdict]]:
    cases = [(each, inquiries(rewards.of(each), each, {})) for each in batch]
    questions = [question for _, inquired in cases for inquiry in inquired for question in inquiry.questions]
    answers = iter(await judging.ask(questions, within_s=wait_s))
    return {each.trajectory_id: verdicts(inquired, answers) for each, inquired in cases}
