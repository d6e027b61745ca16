"""A conversation in tokens: the exact ids of every turn, and one ``model.called`` for every answer.

A context only grows, by what is appended and by what the policy samples, until it is rewritten (a prune, a summary). So
an event needs no more than the tokens that are new: the rest is named by its length and its hash.
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
    """What a call's context adds to the prefix that the log knows already."""

    prefix_length: int
    """Tokens of the prefix; 0 says that ``context_ids`` are the whole context."""
    prefix_sha256: str | None
    """Their hash; ``None`` where there are none."""
    context_ids: IntArray
    """Tokens after the prefix."""


class Context:
    """The tokens that the policy sees, and how many of them the log knows."""

    def __init__(self) -> None:
        self._ids: IntArray = array("i")
        self._logged = 0

    @property
    def ids(self) -> IntArray:
        """All of it; a copy."""
        return self._ids[:]

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens at the end."""
        self._ids.extend(token_ids)

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace everything: the next call starts a new segment, of which the log knows nothing yet."""
        self._ids = array("i", token_ids)
        self._logged = 0

    def extension(self) -> Extension:
        """What the next call must say of its context."""
        digest = prefix_hash(self._ids[: self._logged]) if self._logged else None
        return Extension(self._logged, digest, self._ids[self._logged :])

    def answered(self, token_ids: IntArray) -> None:
        """The policy sampled ``token_ids``: they are part of the context, and the log knows all of it now."""
        self._ids.extend(token_ids)
        self._logged = len(self._ids)


class Policy(Protocol):
    """What a conversation asks; :class:`headrace.agents.policy.PolicyClient` is one."""

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
    """A context, the policy that answers it, and the trajectory that has a record of it."""

    def __init__(self, policy: Policy, trajectory: Trajectory) -> None:
        self._policy = policy
        self._trajectory = trajectory
        self._context = Context()

    @property
    def ids(self) -> IntArray:
        """The context as it stands; a copy."""
        return self._context.ids

    def __len__(self) -> int:
        return len(self._context)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the policy did not sample: a question, a tool's result."""
        self._context.append(token_ids)

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace the context after a prune or a summary. Note that by ``trajectory.pruned`` or ``.summarized``."""
        self._context.rewrite(token_ids)

    async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int] = ()) -> Completion:
        """Sample a turn, note ``model.called`` and add the turn to the context.

        Where the policy raises ``PolicyError`` nothing is noted and the context is as before.
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
