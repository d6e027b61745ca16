"""The coder as a system that can be sampled: its tasks by number and size, and its episode in this process.

CODER_TASKS.training(1_000_017, level=1).task_id   →  "coder-train-n2-1000017"
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.agents.coder.episode import run_episode
from headrace.agents.coder.harness import HARNESS_VERSION, Harness, Limits
from headrace.agents.coder.resume import CannotResume, recorded_turns, replayed
from headrace.agents.coder.tasks import SIZE_WEIGHTS, Split, Task, make_task, task_id
from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent
from headrace.agents.rollouts.fork import CannotFork, ForkPoint
from headrace.agents.sandbox.protocol import Provider
from headrace.agents.sandbox.recorded import RecordedSandbox, restore_recorded, start_recorded
from headrace.agents.trajectory import Trajectory
from headrace.schemas.model import Record

AGENT = "coder"
"""Name of the agent in every ``trajectory.started``; it selects the reward."""

_SIZES = tuple(sorted(SIZE_WEIGHTS))


@dataclass(frozen=True, slots=True)
class CoderTasks:
    """Broken repositories; a level is a number of functions to repair. See
    :class:`headrace.agents.rollouts.tasks.TaskSource`."""

    levels: Sequence[str] = tuple(f"{size} function" if size == 1 else f"{size} functions" for size in _SIZES)

    def training(self, number: int, level: int | None = None) -> Task:
        """Return training task ``number``, with the size of ``level`` or, without one, with a random size."""
        if level is not None and not 0 <= level < len(_SIZES):
            raise ValueError(f"level {level} is outside [0, {len(_SIZES)}): the levels are {', '.join(self.levels)}")
        return make_task(task_id(Split.TRAIN, number, None if level is None else _SIZES[level]))

    def held_out(self, number: int) -> Task:
        """Return held-out task ``number``: what its functions shall compute is never asked for in training."""
        return make_task(task_id(Split.HELD_OUT, number))


CODER_TASKS = CoderTasks()


def coder_agent(provider: Provider, limits: Limits | None = None, *, snapshots: bool = False) -> Agent[Task]:
    """Return the agent, with a sandbox of ``provider`` for each attempt and the rules of its episodes.

    ``snapshots``: take one after every turn, as ``environment.snapshotted``; they stay in the provider's store, for
    continuing or forking an attempt from any turn (``resume.py``), until they are removed there.
    """

    async def attempt(
        conversation: Conversation,
        task: Task,
        trajectory: Trajectory,
        sandbox: RecordedSandbox,
        temperature: float,
        harness: Harness | None = None,
    ) -> None:
        async def snapshot(_: int) -> None:
            await sandbox.snapshot()

        try:
            await run_episode(
                conversation,
                task,
                trajectory,
                sandbox,
                temperature=temperature,
                limits=limits,
                harness=harness,
                after_turn=snapshot if snapshots else None,
            )
        finally:
            await sandbox.stop()

    async def episode(conversation: Conversation, task: Task, trajectory: Trajectory, temperature: float) -> None:
        sandbox = await start_recorded(provider, trajectory, task.broken.texts())
        await attempt(conversation, task, trajectory, sandbox, temperature)

    async def resume(
        conversation: Conversation, task: Task, trajectory: Trajectory, temperature: float, _: Sequence[Record]
    ) -> None:
        # Answers and events repeat until the log's end; edits and tests are carried out again, with equal results.
        await episode(conversation, task, trajectory, temperature)

    async def fork(
        conversation: Conversation, task: Task, trajectory: Trajectory, temperature: float, point: ForkPoint
    ) -> None:
        try:
            turns = recorded_turns(point.events)
            harness = replayed(task, turns, limits)
        except CannotResume as error:
            raise CannotFork(str(error)) from error
        if (taken := turns[-1].snapshot) is None:
            sandbox = await start_recorded(provider, trajectory, harness.repository.texts())
        else:
            sandbox = await restore_recorded(provider, trajectory, taken, source_trajectory_id=point.trajectory_id)
        await attempt(conversation, task, trajectory, sandbox, temperature, harness)

    return Agent(AGENT, HARNESS_VERSION, episode, resume, fork)
