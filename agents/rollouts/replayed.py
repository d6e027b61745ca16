"""Repeats a half-done attempt from the log: what the policy answered is not sampled again, what was sent is not sent
again.

    policy = ReplayedPolicy(client, calls)      # the first len(calls) answers come from the log
    Conversation(policy, sdk.continued(trajectory_id, known=9, replays=True))

An episode that depends only on its task and the policy's answers runs from its start to where it was cut off, and
continues with the engine. A system whose tools have effects restores its environment first (``Agent.resume``).
"""

from array import array
from collections.abc import Sequence

from headrace.agents.conversation import Policy
from headrace.agents.policy import Completion, PolicyError
from headrace.schemas.events import ModelCalled, Sampling


class NotTheSameContext(PolicyError):
    """An attempt that is repeated asks with another context than the log has; it cannot be continued."""


class ReplayedPolicy:
    """A policy whose first answers are those in the log; see :class:`headrace.agents.conversation.Policy`."""

    def __init__(self, policy: Policy, calls: Sequence[ModelCalled]) -> None:
        """``policy``: answers from then on. ``calls``: the answers in the log, in order, with tokens."""
        self._policy = policy
        self._calls = list(reversed(calls))

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._policy.model

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Return the next answer of the log, or sample one after the last. Raises :class:`NotTheSameContext` if the
        context is not the one that the log has."""
        if not self._calls:
            return await self._policy.generate(token_ids, sampling, stop_token_ids=stop_token_ids)
        call = self._calls.pop()
        new = call.context_ids or array("i")
        if len(token_ids) != call.prefix_length + len(new) or list(token_ids[call.prefix_length :]) != list(new):
            raise NotTheSameContext(
                f"the context has {len(token_ids)} tokens, that of the log {call.prefix_length + len(new)}, or they "
                "differ: the episode depends on more than its task and the policy's answers"
            )
        return Completion(
            token_ids=call.sampled_ids or array("i"),
            logprobs=call.logprobs or array("f"),
            version_spans=tuple(call.version_spans),
            finish_reason=call.finish_reason or "stop",
            latency_s=call.latency_s or 0.0,
            sampling=call.sampling,
        )
