"""Trajectories of a range scored again: by the specs of the replay, with the rules of live scoring.

Feedback meets its trajectory in the same join as live, in log time. A judge is not asked here: its verdicts are given,
as they were recorded or from whoever asked, and what has none is ``not_judged``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from headrace.schemas.envelope import from_headers
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, FEEDBACK, REWARDS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import Feedback, Verdict
from headrace.streams.scoring.feedback_join import Changes, Due, Join, JoinLimits
from headrace.streams.scoring.score import reward_message, score_or_label
from headrace.streams.scoring.score_intake import needs_join, take_feedback, take_trajectory
from headrace.streams.typed_record import check_time, typed

Verdicts: TypeAlias = Mapping[str, Mapping[str, Verdict]]
"""Trajectory id → component → what its judge said."""

WAITING = "rewards_waiting_for_feedback_at_end"


class Made(NamedTuple):
    """A reward and its record; without a reward, a dead letter."""

    reward: Reward | None
    outgoing: Outgoing


class Rescoring:
    """Scores the trajectories of all partitions, and counts them."""

    def __init__(self, rewards: Rewards, limits: JoinLimits, verdicts: Verdicts) -> None:
        """``rewards``: which agent is scored by which spec. ``limits`` bound what waits for feedback, a partition."""
        self.counts: Counter[str] = Counter()
        """How many were scored, and how many not, by label."""
        self._rewards = rewards
        self._verdicts = verdicts
        self._joins: dict[int, Join] = defaultdict(lambda: Join(limits))
        # What may be scored (again) later, as it came: as long as the join remembers it.
        self._held: dict[tuple[int, str], LogRecord] = {}

    def take(self, record: LogRecord) -> list[Made]:
        """What the next record of ``trajectories`` or ``feedback`` makes."""
        changes = Changes()
        join = self._joins[record.partition]
        try:
            if record.topic == FEEDBACK.name:
                join.add_feedback(*take_feedback(record), changes)
                return self._settled({record.partition: changes})
            check_time(record)
            envelope, trajectory = typed(record, Trajectory)
            if not needs_join(self._rewards.of(trajectory)):
                return [self._made(self._score(record, trajectory), envelope.traceparent, record.timestamp)]
            taken = take_trajectory(record, self._rewards)
        except UnreadableRecord as error:
            self.counts["unreadable"] += 1
            letter = dead_letter_message(record, error)
            return [Made(None, Outgoing(DEAD_LETTERS, letter, time_of(record)))]
        assert not isinstance(taken, list), "the spec needs the join"
        arrival, trajectory = taken
        self._held.setdefault((record.partition, arrival.trajectory_id), record)
        join.add_trajectory(arrival, changes)
        return self._settled({record.partition: changes}, trajectory)

    def pass_time(self, now_ms: int) -> list[Made]:
        """The rewards of windows that ended before ``now_ms``, in log time."""
        changes: dict[int, Changes] = {}
        for partition, join in self._joins.items():
            if join.is_due(now_ms):
                join.pass_time(now_ms, changes.setdefault(partition, Changes()))
        return self._settled(changes) if changes else []

    def finish(self, end_ms: int) -> list[Made]:
        """Log time goes on to the end of the range; what waits then is counted."""
        made = self.pass_time(end_ms)
        self.counts[WAITING] = sum(join.open for join in self._joins.values())
        for join in self._joins.values():
            self.counts += join.counts
        return made

    def _settled(self, changes: Mapping[int, Changes], in_hand: Trajectory | None = None) -> list[Made]:
        dues = [(due.time_ms, partition, due) for partition, change in changes.items() for due in change.due]
        made = [
            self._decided(partition, due, in_hand) for _, partition, due in sorted(dues, key=lambda entry: entry[:2])
        ]
        for partition, change in changes.items():
            for name, kept in change.stored.items():
                if kept is None:
                    self._held.pop((partition, name), None)
        return made

    def _decided(self, partition: int, due: Due, in_hand: Trajectory | None) -> Made:
        record = self._held[partition, due.trajectory_id]
        known = in_hand is not None and in_hand.trajectory_id == due.trajectory_id
        trajectory = in_hand if known and in_hand is not None else typed(record, Trajectory)[1]
        reward = self._score(record, trajectory, due.feedback, due.revision)
        if due.unscored:
            reward = reward.model_copy(update={"total": None, "unscored": due.unscored})
        return self._made(reward, from_headers(record.headers).traceparent, due.time_ms)

    def _score(
        self, record: LogRecord, trajectory: Trajectory, feedback: Iterable[Feedback] = (), revision: int = 0
    ) -> Reward:
        reward, _ = score_or_label(
            trajectory,
            Reference(partition=record.partition, offset=record.offset),
            rewards=self._rewards,
            feedback=tuple(feedback),
            verdicts=self._verdicts.get(trajectory.trajectory_id),
            revision=revision,
        )
        return reward

    def _made(self, reward: Reward, origin: str | None, time_ms: int) -> Made:
        self.counts["revisions" if reward.revision else REWARDS.name] += 1
        if reward.unscored is not None and not reward.revision:
            self.counts[f"unscored_{reward.unscored}"] += 1
        return Made(reward, Outgoing(REWARDS, reward_message(reward, origin=origin), time_ms))
