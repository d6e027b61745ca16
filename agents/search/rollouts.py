"""The search agent as a system that can be sampled: its tasks by number and hops, and its episode in this process.

SEARCH_TASKS.training(1_000_017, level=1).task_id   →  "search-train-1000017-2hops"
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent, Episode, TaskT
from headrace.agents.rollouts.fork import ForkPoint, RepeatedConversation
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import HARNESS_VERSION, Limits
from headrace.agents.search.tasks import HOP_WEIGHTS, Split, Task, make_task, task_id
from headrace.agents.trajectory import Trajectory
from headrace.schemas.model import Record

AGENT = "search"
"""Name of the reference agent in every ``trajectory.started``; it selects the reward."""

_HOPS = tuple(sorted(HOP_WEIGHTS))


@dataclass(frozen=True, slots=True)
class SearchTasks:
    """Questions over random corpora; a level is a number of hops. See
    :class:`headrace.agents.rollouts.tasks.TaskSource`."""

    levels: Sequence[str] = tuple(f"{hops} hop" if hops == 1 else f"{hops} hops" for hops in _HOPS)

    def training(self, number: int, level: int | None = None) -> Task:
        """Return training task ``number``, with the hops of ``level`` or, without one, with random hops."""
        if level is not None and not 0 <= level < len(_HOPS):
            raise ValueError(f"level {level} is outside [0, {len(_HOPS)}): the levels are {', '.join(self.levels)}")
        return make_task(task_id(Split.TRAIN, number, None if level is None else _HOPS[level]))

    def held_out(self, number: int) -> Task:
        """Return held-out task ``number``: its question and corpus never occur in training."""
        return make_task(task_id(Split.HELD_OUT, number))


SEARCH_TASKS = SearchTasks()


def search_agent(limits: Limits | None = None) -> Agent[Task]:
    """Return the agent, with the rules of its episodes."""

    async def episode(conversation: Conversation, task: Task, trajectory: Trajectory, temperature: float) -> None:
        await run_episode(conversation, task, trajectory, temperature=temperature, limits=limits)

    return agent_of(episode)


def agent_of(episode: Episode[TaskT]) -> Agent[TaskT]:
    """Return the search agent whose loop is ``episode``. What it does depends on the policy's answers alone, so it is
    resumed and continued by being run again, with the recorded answers."""

    async def resume(
        conversation: Conversation, task: TaskT, trajectory: Trajectory, temperature: float, _: Sequence[Record]
    ) -> None:
        await episode(conversation, task, trajectory, temperature)

    async def fork(
        conversation: Conversation, task: TaskT, trajectory: Trajectory, temperature: float, point: ForkPoint
    ) -> None:
        await episode(RepeatedConversation(conversation, point), task, trajectory, temperature)

    return Agent(AGENT, HARNESS_VERSION, episode, resume, fork)
