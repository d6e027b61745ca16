"""Plays episodes in a static batch: as many at a time as the cache has rows, each at its own pace.

    [attempt] = play(model, [episode], SamplingSettings(stop_ids=(END,), max_tokens=16), seed=3)
    attempt.calls[0]        Call(context=(…), sampled=(24, 57, 1), logprobs=(-0.3, -1.2, -0.01))

Only the tokens of a context that are new are computed. If an episode rewrites its context, by a prune or a summary, its
row is computed again from the first token that differs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from tests.simulator.kv_cache import KeyValueCache, cached_attention, feed

LEAST_SHARE = 0.25
"""Rows that begin a call wait until they are this share of those that are sampling."""


class SimulatedEpisode(Protocol):
    """An attempt at a task, without a model."""

    def observe(self) -> Sequence[int]:
        """Returns the whole context of the next model call."""

    def act(self, sampled: Sequence[int]) -> object:
        """Apply a model call's tokens, including the one that stopped it."""

    def reward(self) -> float:
        """Returns the reward, once ``is_done``."""

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""


E = TypeVar("E", bound=SimulatedEpisode)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are sampled."""

    stop_ids: tuple[int, ...]
    """Tokens that end a model call; sampled as well."""
    max_tokens: int
    """Largest number of tokens of a model call."""
    rows: int = 128
    """Episodes at a time."""
    capacity: int = 256
    """Largest context, in tokens."""
    temperature: float = 1.0
    """Temperature of sampling, above 0."""

    def __post_init__(self) -> None:
        if not self.stop_ids or min(self.max_tokens, self.rows, self.capacity) < 1 or not self.temperature > 0:
            raise ValueError(
                "stop_ids must not be empty; max_tokens, rows and capacity at least 1; temperature above 0"
            )


@dataclass(frozen=True, slots=True)
class Call:
    """A model call; axis S sampled tokens."""

    context: tuple[int, ...]
    sampled: tuple[int, ...]
    """(S,)"""
    logprobs: tuple[float, ...]
    """(S,) log-probability of each under the policy that sampled it, at its temperature."""


@dataclass(slots=True)
class Attempt(Generic[E]):
    """An episode that was played."""

    episode: E
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class _Row(Generic[E]):
    number: int
    attempt: Attempt[E]
    cached: list[int]
    """Tokens whose keys and values are in the cache."""
    context: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def begin(self) -> tuple[int, Sequence[int]]:
        """Begin a model call; returns the position of the first token to compute, and the tokens from there on."""
        self.context, self.sampled, self.logprobs = list(self.attempt.episode.observe()), [], []
        # At least the last token is computed: its logits are needed.
        kept = min(_common_prefix(self.cached, self.context), len(self.context) - 1)
        return kept, self.context[kept:]

    def following(self) -> tuple[int, Sequence[int]]:
        """Returns the position of the token sampled last, and that token."""
        return len(self.context) + len(self.sampled) - 1, self.sampled[-1:]

    def has_ended(self, settings: SamplingSettings) -> bool:
        """Returns whether the call has ended."""
        return self.sampled[-1] in settings.stop_ids or len(self.sampled) >= settings.max_tokens


def play(
    model: PreTrainedModel, episodes: Iterable[E], settings: SamplingSettings, *, seed: int, greedy: bool = False
) -> list[Attempt[E]]:
    """Play ``episodes`` to their ends, in the order given; the same seed gives the same tokens.

    Raises ``ValueError`` if a context with a call's tokens exceeds ``capacity``.
    """
    attempts = [Attempt(episode) for episode in episodes]
    if not attempts:
        return []
    cache = KeyValueCache(model, rows=min(settings.rows, len(attempts)), capacity=settings.capacity)
    generator = torch.Generator().manual_seed(seed)
    waiting = iter(attempts)
    rows = [_Row(number, next(waiting), []) for number in range(cache.rows)]
    with cached_attention(model):
        due, calling = rows, list[_Row[E]]()
        while due or calling:
            # Rows that begin a call are fed together: each has many new tokens, and those that sample would wait.
            if due and len(due) >= LEAST_SHARE * len(calling):
                _feed(model, cache, {row.number: row.begin() for row in due}, due, settings, generator, greedy)
                calling, due = sorted((*calling, *due), key=lambda row: row.number), []
            else:
                new = {row.number: row.following() for row in calling}
                _feed(model, cache, new, calling, settings, generator, greedy)
            ended = [row for row in calling if row.has_ended(settings)]
            calling = [row for row in calling if not row.has_ended(settings)]
            due = sorted((*due, *(row for row in ended if _acted(row, waiting))), key=lambda row: row.number)
    return attempts


def _acted(row: _Row[E], waiting: Iterator[Attempt[E]]) -> bool:
    """Apply the call of ``row``; returns whether the row plays on, its own episode or the next that waits."""
    row.attempt.calls.append(Call(tuple(row.context), tuple(row.sampled), tuple(row.logprobs)))
    row.attempt.episode.act(row.sampled)
    # The last sampled token is not in the cache.
    row.cached = row.context + row.sampled[:-1]
    if row.attempt.episode.is_done:
        following = next(waiting, None)
        if following is None:
            return False
        row.attempt = following
    return True


def _feed(
    model: PreTrainedModel,
    cache: KeyValueCache,
    new: dict[int, tuple[int, Sequence[int]]],
    rows: Sequence[_Row[E]],
    settings: SamplingSettings,
    generator: torch.Generator,
    greedy: bool,
) -> None:
    """Sample a token of each of ``rows``, which are in the order of the cache, after their new tokens."""
    tokens, logprobs = _draw(feed(model, cache, new), settings.temperature, None if greedy else generator)
    for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
        row.sampled.append(token)
        row.logprobs.append(logprob)


def _draw(
    logits_BV: torch.Tensor, temperature: float, generator: torch.Generator | None
) -> tuple[list[int], list[float]]:
    """Returns a token of each row and its log-probability; the likeliest token without a ``generator``."""
    logprobs_BV = (logits_BV / temperature).log_softmax(-1)
    if generator is None:
        tokens_B = logprobs_BV.argmax(-1)
    else:
        tokens_B = torch.multinomial(logprobs_BV.exp(), 1, generator=generator)[:, 0]
    return tokens_B.tolist(), logprobs_BV.gather(1, tokens_B[:, None])[:, 0].tolist()


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the number of tokens that both begin with."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(place for place in range(shorter) if first[place] != second[place])
