"""One live attempt: the harness's rules, a policy's tokens, concurrent sub-agents, and an event for every step.

    with headrace.trajectory(task_id=…, agent="swarm", task=task.facts, …) as trajectory:
        await run_episode(conversation, task, trajectory, ScriptedWorkers(), run="swarm-7")

What sub-agents sample never enters the orchestrator's sampled tokens: their messages are tokens that it reads.
"""

import asyncio
from collections.abc import Sequence

from headrace.agents.search.episode import PolicyWithContext
from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.harness import (
    Assigned,
    Done,
    Harness,
    Limits,
    ToolResult,
    assign_arguments,
    assign_result,
)
from headrace.agents.swarm.subagents import Report, SubTask
from headrace.agents.swarm.tasks import Task
from headrace.agents.swarm.workers import Workers
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import Role, Sampling


async def run_episode(
    policy: PolicyWithContext,
    task: Task,
    trajectory: Trajectory,
    workers: Workers,
    *,
    run: str | None = None,
    temperature: float = 1.0,
    limits: Limits | None = None,
) -> Done:
    """Attempt ``task``; end ``trajectory`` with the status, the answer and the outcome, and return them.

    ``run``: the training run that the sub-agents' trajectories name. No sampled tokens raise. Errors of a policy (an
    engine is unavailable) propagate once all sub-agents of the turn have ended, and the ``with`` block of the
    trajectory records it as failed.
    """
    harness = Harness(task, trajectory.id, limits)
    sampling = Sampling(temperature=temperature, max_tokens=harness.limits.sampled_tokens)
    policy.append(harness.observe())
    while True:
        turn = await policy.sample(sampling, stop_token_ids=(words.END_ID,))
        step = harness.act(turn.token_ids)
        if isinstance(step, Assigned):
            step = harness.report(await _delegate(step, task, trajectory, workers, run))
        else:
            _note(trajectory, step.calls)
        if isinstance(step, Done):
            trajectory.end(step.status, step.answer, step.outcome)
            return step
        policy.append(step.ids)


async def _delegate(
    assigned: Assigned, task: Task, trajectory: Trajectory, workers: Workers, run: str | None
) -> list[Report]:
    """Run the sub-agents of one turn concurrently; return their reports in order."""

    async def report(subtask: SubTask) -> Report:
        with trajectory.tool(words.ASSIGN, dict(assign_arguments(subtask))) as call:
            sub = trajectory.subagent(
                subtask.name,
                task_id=task.task_id,
                stage=assigned.stage,
                role=Role.FROZEN,
                agent=workers.agent,
                run=run,
                task={"source": str(task.source), "system_prompt": " ".join(subtask.system_prompt)},
            )
            async with sub as own:
                found = await workers.work(subtask, task.corpus, assigned.max_steps, own)
            call.result = assign_result(found)
            return found

    # All end, and are recorded, before an error of one of them propagates.
    ended = await asyncio.gather(*map(report, assigned.subtasks), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]


def _note(trajectory: Trajectory, calls: Sequence[ToolResult]) -> None:
    """Record the tool calls that the harness executed."""
    for each in calls:
        with trajectory.tool(each.tool, each.arguments) as call:
            if each.error_class is None:
                call.result = each.result
            else:
                call.error(each.error_class, each.result)
