"""How score decides what is due: trajectories read back, judges asked, rewards handed to their joins."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from headrace.schemas.kafka.read_back import Place, read_back
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.faust_shell.outage import PartitionsRevoked
from headrace.streams.rewards.judge_client import Judging
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.due_rewards import Case, all_questions, conclude, gone, to_ask
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, Changes, Due, Join
from headrace.streams.typed_record import typed

logger = logging.getLogger(__name__)

Hand: TypeAlias = dict[Place, Trajectory]
"""Trajectories that need not be read back, by partition and offset."""


class Decider:
    """Makes rewards of what is due; keeps nothing."""

    def __init__(
        self, bootstrap: str, rewards: Rewards, *, batch: int, judging: Judging | None, judge_wait_s: float
    ) -> None:
        """``batch`` trajectories are read back and judged at a time; judges have ``judge_wait_s`` seconds for them."""
        self._bootstrap = bootstrap
        self._rewards = rewards
        self._batch = batch
        self._judging = judging
        self._judge_wait_s = judge_wait_s

    async def decide(
        self, changes: Mapping[int, Changes], joins: Mapping[int, Join], hand: Hand, revoked: asyncio.Event
    ) -> None:
        """Decide everything that is due in ``changes``, by partition.

        Raises :class:`PartitionsRevoked` where ``revoked`` is set before the judges have answered: a rebalance, or the
        end, does not wait for them.
        """
        dues = [(partition, due) for partition, change in changes.items() for due in change.due]
        for start in range(0, len(dues), self._batch):
            some = dues[start : start + self._batch]
            found = hand | await self._read_back({(partition, due.offset) for partition, due in some} - hand.keys())
            cases = []
            for partition, due in some:
                trajectory = found.get((partition, due.offset))
                if trajectory is not None and trajectory.trajectory_id == due.trajectory_id:
                    cases.append(Case(partition, due, trajectory))
                else:
                    self._give_up(due, joins[partition], changes[partition])
            asked = to_ask(cases, self._rewards, joins)
            answers = iter(await self._ask(all_questions(asked), revoked))
            conclude(cases, asked, answers, self._rewards, joins, changes)

    @staticmethod
    def _give_up(due: Due, join: Join, changes: Changes) -> None:
        join.counts[TRAJECTORY_GONE] += 1
        reward = gone(due)
        if reward is not None:
            join.decided(due, reward, {}, changes)

    async def _ask(self, questions: Sequence[Question], revoked: asyncio.Event) -> list[Answer]:
        if not questions:
            return []
        if self._judging is None:
            raise RuntimeError("a reward has judges and there is no endpoint to ask: set workers.judge_url")
        asking = asyncio.ensure_future(self._judging.ask(questions, within_s=self._judge_wait_s))
        ending = asyncio.ensure_future(revoked.wait())
        try:
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise PartitionsRevoked
            return asking.result()
        finally:
            for task in (asking, ending):
                task.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    async def _read_back(self, places: Collection[Place]) -> Hand:
        if not places:
            return {}
        hand = {}
        for place, record in (await read_back(self._bootstrap, TRAJECTORIES, places)).items():
            try:
                hand[place] = typed(record, Trajectory)[1]
            except UnreadableRecord as error:  # it was readable when it came: gone, for the code of today
                logger.warning("%s[%d]@%d cannot be read back: %s", TRAJECTORIES.name, *place, error)
        return hand
