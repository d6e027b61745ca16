"""One live attempt: the harness's rules, a policy's tokens, and an event for every step.

with headrace.trajectory(task_id=…, agent="search", task=task.facts, …) as trajectory:
    await run_episode(conversation, task, trajectory)
"""

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.agents.search import vocabulary as words
from headrace.agents.search.harness import Done, Harness, Limits, Observation
from headrace.agents.search.tasks import Task
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


async def run_episode(
    policy: PolicyWithContext,
    task: Task,
    trajectory: Trajectory,
    *,
    temperature: float = 1.0,
    limits: Limits | None = None,
) -> Done:
    """Attempt ``task``; end ``trajectory`` with the status and the answer, and return them.

    No sampled tokens raise. Errors of the policy (the engine is unavailable) propagate, and the ``with`` block of the
    trajectory records it as failed.
    """
    harness = Harness(task, limits)
    sampling = Sampling(temperature=temperature, max_tokens=harness.limits.sampled_tokens)
    policy.append(harness.observe())
    while True:
        turn = await policy.sample(sampling, stop_token_ids=(words.END_ID,))
        step = harness.act(turn.token_ids)
        observation = step.observation if isinstance(step, Done) else step
        if observation is not None:
            _note(trajectory, observation)
        if isinstance(step, Done):
            trajectory.end(step.status, step.answer)
            return step
        if step.pruned is not None:
            policy.rewrite(step.ids)
        else:
            policy.append(step.ids)


def _note(trajectory: Trajectory, observation: Observation) -> None:
    """Record the tool call that the harness executed, and the prune if it was one."""
    result: dict[str, Any] = observation.result
    with trajectory.tool(observation.tool, observation.arguments) as call:
        if observation.error_class is None:
            call.result = result
        else:
            call.error(observation.error_class, result)
    if observation.pruned is not None:
        pruned = observation.pruned
        trajectory.pruned(pruned.chunk_ids, pruned.tokens_before, pruned.tokens_after)
