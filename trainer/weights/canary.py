"""Canaries: token sequences whose log-probabilities under a version are known, so that no swap has to be believed.

The trainer publishes some with each version, the same tokens throughout a run, with its log-probabilities under that
version and under the one before. A follower asks its engine for them before and after the swap, and
``follower.verdict`` says what to believe. Random tokens do it: they reach every embedding row alike and need no
tokenizer.
"""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from headrace.schemas.arrays import IntArray
from headrace.schemas.records.weights import Canary

MAX_CANARY_TOKENS = 2**18
"""Tokens of all canaries of a version, which an engine is asked to score."""


def make_prompts(vocabulary_size: int, seed: int, *, count: int = 4, length: int = 32) -> list[IntArray]:
    """``count`` sequences of ``length`` uniformly drawn token ids below ``vocabulary_size``; the same for a seed."""
    if vocabulary_size < 1 or count < 1 or length < 2:
        raise ValueError(f"no canary of {count} x {length} tokens out of {vocabulary_size}")
    drawn = np.random.default_rng(seed).integers(0, vocabulary_size, (count, length))
    return [array("i", row.tolist()) for row in drawn]


def with_parent(canaries: Sequence[Canary], parent: Sequence[Canary]) -> list[Canary]:
    """``canaries`` with the log-probabilities that those of the ``parent`` version give to the same tokens."""
    known = {bytes(each.token_ids): each.logprobs for each in parent}
    return [each.model_copy(update={"parent_logprobs": known.get(bytes(each.token_ids))}) for each in canaries]


def max_error(canaries: Sequence[Canary], engine_logprobs: Sequence[Sequence[float]]) -> float:
    """Largest absolute difference between the canaries' log-probabilities and an engine's, in nats.

    ``engine_logprobs[i]`` has one value for each token of canary i after the first. A value that is not finite gives
    infinity, and so do no canaries at all: what was not compared does not agree. Raises ``ValueError`` where the
    shapes differ.
    """
    if len(canaries) != len(engine_logprobs):
        raise ValueError(f"{len(engine_logprobs)} sequences of log-probabilities for {len(canaries)} canaries")
    worst = 0.0 if canaries else math.inf
    for number, (canary, engine) in enumerate(zip(canaries, engine_logprobs, strict=True)):
        if len(canary.logprobs) != len(engine):
            raise ValueError(f"canary {number}: {len(engine)} log-probabilities, expected {len(canary.logprobs)}")
        for expected, found in zip(canary.logprobs, engine, strict=True):
            error = abs(expected - found)
            worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst
