"""Canaries: token sequences whose log-probabilities under a version are known, so that no swap has to be believed.

The trainer publishes a few with each version; a follower asks its engine for the same log-probabilities after the swap
and acknowledges only where they agree. Random tokens do it: they reach every embedding row alike, need no tokenizer,
and an engine that kept the old weights of any layer answers visibly otherwise.
"""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from headrace.schemas.arrays import IntArray
from headrace.schemas.records.weights import Canary


def make_prompts(vocabulary_size: int, seed: int, *, count: int = 4, length: int = 32) -> list[IntArray]:
    """``count`` sequences of ``length`` uniformly drawn token ids below ``vocabulary_size``; the same for a seed."""
    if vocabulary_size < 1 or count < 1 or length < 2:
        raise ValueError(f"no canary of {count} x {length} tokens out of {vocabulary_size}")
    drawn = np.random.default_rng(seed).integers(0, vocabulary_size, (count, length))
    return [array("i", row.tolist()) for row in drawn]


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
