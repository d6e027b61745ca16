"""The hook of score: reads trajectories back, calls judges, and passes rewards to their joins."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.processors.score import ScoreOperator
from headrace.streams.rewards.judge_inquiry import verdicts
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import Verdict
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Outside
from headrace.streams.scoring.due_rewards import Case, Judged, all_questions, conclude, reward_of_deleted, to_ask
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, DueReward, Join, JoinChanges
from headrace.streams.typed_record import typed

logger = logging.getLogger(__name__)

Verdicts: TypeAlias = Mapping[str, Mapping[str, Verdict]]
"""Trajectory id → component → verdict of its judge."""


class Decider:
    """Computes due rewards; stateless."""

    def __init__(self, rewards: Rewards, outside: Outside, verdicts: Verdicts | None = None) -> None:
        """``outside`` reads trajectories back and calls judges; without judges, their components are ``not_judged``.

        If ``verdicts`` are given, they are used and no judge is called.
        """
        self._rewards = rewards
        self._outside = outside
        self._verdicts = verdicts

    async def complete(self, operators: Mapping[int, ScoreOperator]) -> None:
        """Decide all due rewards of ``operators``, which are by partition."""
        changes = {number: operator.changes for number, operator in operators.items()}
        joins = {number: operator.join for number, operator in operators.items()}
        joining = {
            (number, offset): trajectory
            for number, operator in operators.items()
            for offset, trajectory in operator.joining.items()
        }
        dues = [(partition, due) for partition, change in changes.items() for due in change.due]
        for start in range(0, len(dues), self._outside.batch):
            some = dues[start : start + self._outside.batch]
            wanted = {(partition, due.offset) for partition, due in some} - joining.keys()
            found = joining | await self._read_back(wanted)
            cases = []
            for partition, due in some:
                trajectory = found.get((partition, due.offset))
                if trajectory is not None and trajectory.trajectory_id == due.trajectory_id:
                    cases.append(Case(partition, due, trajectory))
                else:
                    self._give_up(due, joins[partition], changes[partition])
            conclude(cases, await self._verdicts_on(cases, joins), self._rewards, joins, changes)

    @staticmethod
    def _give_up(due: DueReward, join: Join, changes: JoinChanges) -> None:
        join.counts[TRAJECTORY_GONE] += 1
        reward = reward_of_deleted(due)
        if reward is not None:
            join.decided(due, reward, {}, changes)

    async def _verdicts_on(self, cases: Sequence[Case], joins: Mapping[int, Join]) -> Judged:
        """Returns the verdicts on ``cases`` that their joins do not know yet."""
        if self._verdicts is not None:
            return {case.name: self._verdicts.get(case.due.trajectory_id, {}) for case in cases}
        if self._outside.ask is None:
            return {}
        asked = to_ask(cases, self._rewards, joins)
        questions = all_questions(asked)
        answers = iter(await self._outside.ask(questions) if questions else ())
        return {name: verdicts(inquiries, answers) for name, inquiries in asked.items()}

    async def _read_back(self, places: Collection[Place]) -> dict[Place, Trajectory]:
        found: dict[Place, Trajectory] = {}
        if not places:
            return found
        for place, record in (await self._outside.read_back(TRAJECTORIES, places)).items():
            try:
                found[place] = typed(record, Trajectory)[1]
            except UnreadableRecord as error:  # readable on arrival, but not for the current code
                logger.warning("%s[%d]@%d cannot be read back: %s", TRAJECTORIES.name, *place, error)
        return found


def decide_due(rules: Rules, outside: Outside) -> Decider:
    """Returns the hook for ``rules``."""
    return Decider(rules.rewards, outside)
