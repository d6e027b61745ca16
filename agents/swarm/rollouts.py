"""The orchestrator as a system that can be sampled: its tasks by number and difficulty, and its episode.

SWARM_TASKS.training(1_000_017, level=2).task_id   →  "swarm-train-1000017-hard"
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent
from headrace.agents.swarm.episode import run_episode
from headrace.agents.swarm.harness import HARNESS_VERSION, Limits
from headrace.agents.swarm.tasks import LEVELS, Split, Task, make_task, task_id
from headrace.agents.swarm.workers import ScriptedWorkers, Workers
from headrace.agents.trajectory import Trajectory

AGENT = "swarm"
"""Name of the orchestrator in every ``trajectory.started``; it selects the reward."""


@dataclass(frozen=True, slots=True)
class SwarmTasks:
    """Wide and deep tasks; see :class:`headrace.agents.rollouts.tasks.TaskSource`."""

    levels: Sequence[str] = tuple(LEVELS)

    def training(self, number: int, level: int | None = None) -> Task:
        """Return training task ``number``, of the difficulty ``level`` or, without one, of any."""
        if level is not None and not 0 <= level < len(self.levels):
            raise ValueError(f"level {level} is outside [0, {len(self.levels)}): the levels are {', '.join(LEVELS)}")
        return make_task(task_id(Split.TRAIN, number, None if level is None else self.levels[level]))

    def held_out(self, number: int) -> Task:
        """Return held-out task ``number``: its question never occurs in training."""
        return make_task(task_id(Split.HELD_OUT, number))


SWARM_TASKS = SwarmTasks()


def swarm_agent(run: str, workers: Workers | None = None, limits: Limits | None = None) -> Agent[Task]:
    """Return the orchestrator of training run ``run``. ``workers``: its sub-agents; the default is scripted ones."""
    chosen = workers or ScriptedWorkers()

    async def episode(conversation: Conversation, task: Task, trajectory: Trajectory, temperature: float) -> None:
        await run_episode(conversation, task, trajectory, chosen, run=run, temperature=temperature, limits=limits)

    return Agent(AGENT, HARNESS_VERSION, episode)  # a resumed episode would start its sub-agents again
