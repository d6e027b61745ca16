"""One live attempt: the harness's rules, a policy's tokens, a sandbox, and an event for every step.

async with headrace.trajectory(task_id=…, agent="coder", task=task.facts, …) as trajectory:
    sandbox = await provider.start(task.broken.texts())
    await run_episode(conversation, task, trajectory, sandbox)
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Done, Harness, Limits, Observation, TestRun
from headrace.agents.coder.sandboxed_tests import run_in_sandbox
from headrace.agents.coder.tasks import Task
from headrace.agents.sandbox.protocol import Sandbox
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import Sampling


class Sampled(Protocol):
    """A sampled turn; :class:`headrace.agents.policy.Completion` implements it."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Tokens of the turn, including its ``<end>``."""
        ...


class PolicyWithContext(Protocol):
    """A policy with a context; :class:`headrace.agents.conversation.Conversation` implements it and emits
    ``model.called``."""

    def append(self, token_ids: Sequence[int]) -> None:
        """Add observed tokens to the context."""
        ...

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace the context."""
        ...

    async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int]) -> Sampled:
        """Sample a turn and add it to the context."""
        ...


AfterTurn = Callable[[int], Awaitable[None]]
"""Called with the number of turns taken, after the files of a turn are written and before the next call."""


async def run_episode(
    policy: PolicyWithContext,
    task: Task,
    trajectory: Trajectory,
    sandbox: Sandbox,
    *,
    temperature: float = 1.0,
    limits: Limits | None = None,
    harness: Harness | None = None,
    first: Sequence[int] | None = None,
    after_turn: AfterTurn | None = None,
) -> Done:
    """Attempt ``task`` in ``sandbox``; end ``trajectory`` with the status and the verdict, and return them.

    ``sandbox`` starts with the task's broken files. With a ``harness`` the attempt continues from its state, and
    ``sandbox`` has that state's files; ``first``: tokens of its next turn that were sampled before (``resume.py``).

    No sampled tokens raise. Errors of the policy (the engine is unavailable) and of the sandbox propagate, and the
    ``with`` block of the trajectory records it as failed.
    """
    harness = harness or Harness(task, limits)
    sampling = Sampling(temperature=temperature, max_tokens=harness.limits.sampled_tokens)
    policy.append(harness.observe())
    while True:
        if first is None:
            sampled = (await policy.sample(sampling, stop_token_ids=(words.END_ID,))).token_ids
        else:
            sampled, first = first, None
            policy.append(sampled)
        step = harness.act(sampled)
        if isinstance(step, TestRun):
            outputs, error = await run_in_sandbox(sandbox, step, harness.repository.texts())
            step = harness.tested(outputs, error)
        observation = step.observation if isinstance(step, Done) else step
        if observation is not None:
            note(trajectory, observation)
            if observation.written is not None:
                await sandbox.write(observation.written, harness.repository.text(observation.written))
        if isinstance(step, Done):
            trajectory.end(step.status, step.answer, step.outcome)
            return step
        if step.summarized is not None:
            policy.rewrite(step.ids)
        else:
            policy.append(step.ids)
        if after_turn is not None:
            await after_turn(harness.turns)


def note(trajectory: Trajectory, observation: Observation) -> None:
    """Record the tool call that the harness carried out, or the summary."""
    if observation.summarized is not None:
        summary = observation.summarized
        trajectory.summarized(
            summary.tokens_before,
            summary.tokens_after,
            summary.summary,
            chain_index=summary.chain_index,
            summary_tokens=summary.summary_tokens,
        )
        return
    result: dict[str, Any] = observation.result
    # Tests that time out or end the process are a result: the tool worked, and the verdict is the policy's doing.
    thinking = observation.thinking_tokens
    with trajectory.tool(observation.tool, observation.arguments, thinking_tokens=thinking) as call:
        if observation.error_class is not None:
            call.error(observation.error_class, result)
        else:
            call.result = result
