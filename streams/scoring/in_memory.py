"""Score on one partition in memory: what the score worker does, without a broker and with time as it is told."""

from collections.abc import Callable

from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, FEEDBACK
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.due_rewards import Case, all_questions, announcements, conclude, to_ask
from headrace.streams.scoring.feedback_join import Changes, Join, JoinLimits
from headrace.streams.scoring.score_intake import take_feedback, take_trajectory


class Scoring:
    """Trajectories and feedback in, rewards out. Keeps the trajectories that may still be scored again."""

    def __init__(self, rewards: Rewards, judge: Callable[[Question], str] | None, limits: JoinLimits) -> None:
        """``judge`` gives the text that a judge would; without one, judged components are ``not_judged``."""
        self._rewards = rewards
        self._judge = judge
        self._join = Join(limits)
        self._trajectories: dict[int, Trajectory] = {}

    def take(self, record: StoredRecord) -> list[Outgoing]:
        """What a record of ``trajectories`` or ``feedback`` makes."""
        # Time first: a window that ended before this record closes without it.
        outgoing = self.pass_time(record.timestamp)
        changes = Changes()
        try:
            if record.topic == FEEDBACK.name:
                self._join.add_feedback(*take_feedback(record), changes)
                return outgoing + self._settled(changes)
            taken = take_trajectory(record, self._rewards)
        except UnreadableRecord as error:
            return [*outgoing, Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record))]
        if isinstance(taken, list):
            return [*outgoing, *taken]
        arrival, self._trajectories[record.offset] = taken
        self._join.add_trajectory(arrival, changes)
        return outgoing + self._settled(changes)

    def pass_time(self, until_ms: int) -> list[Outgoing]:
        """The rewards of windows that ended before ``until_ms``."""
        changes = Changes()
        self._join.pass_time(until_ms, changes)
        return self._settled(changes)

    def _settled(self, changes: Changes) -> list[Outgoing]:
        cases = [Case(0, due, self._trajectories[due.offset]) for due in changes.due]
        joins, judge = {0: self._join}, self._judge
        asked = to_ask(cases, self._rewards, joins) if judge else {}
        answers = [Answer(question.rubric.name, judge(question)) for question in all_questions(asked)] if judge else []
        conclude(cases, asked, iter(answers), self._rewards, joins, {0: changes})
        return announcements(changes)
