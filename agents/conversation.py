"""A conversation as token ids: the exact ids of every turn, and one ``model.called`` event for every answer.

A context only grows, by appended and sampled tokens, until it is rewritten (a prune, a summary). So an event contains
only the new tokens; the prefix is identified by its length and its hash.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.agents.policy import Completion
from headrace.agents.trajectory import Trajectory
from headrace.schemas.arrays import IntArray
from headrace.schemas.events import Sampling, Usage
from headrace.schemas.tokens import prefix_hash


@dataclass(frozen=True, slots=True)
class Extension:
    """A call's context as an extension of the prefix that earlier events contain."""

    prefix_length: int
    """Number of tokens in the prefix; with 0, ``context_ids`` are the whole context."""
    prefix_sha256: str | None
    """Hash of the prefix; ``None`` if it is empty."""
    context_ids: IntArray
    """Tokens after the prefix."""


class Context:
    """The tokens that the policy sees, and the length of the prefix that earlier events contain."""

    def __init__(self) -> None:
        self._ids: IntArray = array("i")
        self._logged = 0

    @property
    def ids(self) -> IntArray:
        """A copy of all tokens."""
        return self._ids[:]

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens at the end."""
        self._ids.extend(token_ids)

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace all tokens: the next call starts a new segment without a prefix."""
        self._ids = array("i", token_ids)
        self._logged = 0

    def extension(self) -> Extension:
        """Return the context for the next ``model.called`` event."""
        digest = prefix_hash(self._ids[: self._logged]) if self._logged else None
        return Extension(self._logged, digest, self._ids[self._logged :])

    def answered(self, token_ids: IntArray) -> None:
        """Append ``token_ids``, which the policy sampled. The call's event makes the whole context the next prefix."""
        self._ids.extend(token_ids)
        self._logged = len(self._ids)


class Policy(Protocol):
    """The interface of a policy; :class:`headrace.agents.policy.PolicyClient` implements it."""

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Sample a continuation."""
        ...


class Conversation:
    """Connects a context, the policy that continues it, and the trajectory that records the calls."""

    def __init__(self, policy: Policy, trajectory: Trajectory) -> None:
        self._policy = policy
        self._trajectory = trajectory
        self._context = Context()

    @property
    def ids(self) -> IntArray:
        """A copy of the current context."""
        return self._context.ids

    def __len__(self) -> int:
        return len(self._context)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the policy did not sample, such as a question or a tool's result."""
        self._context.append(token_ids)

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace the context after a prune or a summary. The caller emits ``trajectory.pruned`` or ``.summarized``."""
        self._context.rewrite(token_ids)

    async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int] = ()) -> Completion:
        """Sample a turn, emit ``model.called`` and add the turn to the context.

        If the policy raises ``PolicyError``, no event is emitted and the context is unchanged.
        """
        extension = self._context.extension()
        completion = await self._policy.generate(self._context.ids, sampling, stop_token_ids=stop_token_ids)
        self._trajectory.model_called(
            self._policy.model,
            prefix_length=extension.prefix_length,
            prefix_sha256=extension.prefix_sha256,
            context_ids=extension.context_ids,
            sampled_ids=completion.token_ids,
            logprobs=completion.logprobs,
            version_spans=completion.version_spans,
            sampling=completion.sampling or sampling,
            finish_reason=completion.finish_reason,
            latency_s=completion.latency_s,
            usage=Usage(prompt_tokens=len(self._context), completion_tokens=len(completion.token_ids)),
        )
        self._context.answered(completion.token_ids)
        return completion
