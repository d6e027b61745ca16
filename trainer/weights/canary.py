"""Canaries: token sequences with known log-probabilities under a version, by which a weight swap is verified.

The trainer publishes canaries with each version: the same tokens throughout a run, with its log-probabilities under
that version and under the one before. A follower has its engine score them before and after the swap, and
``follower.verdict`` decides whether the swap succeeded. Random tokens suffice: they cover all embedding rows evenly and
need no tokenizer.
"""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from headrace.schemas.arrays import IntArray
from headrace.schemas.records.weights import Canary

MAX_CANARY_TOKENS = 2**18
"""Largest number of tokens of all canaries of a version."""


def make_prompts(vocabulary_size: int, seed: int, *, count: int = 4, length: int = 32) -> list[IntArray]:
    """Returns ``count`` sequences of ``length`` token ids, uniform below ``vocabulary_size``, drawn by ``seed``."""
    if vocabulary_size < 1 or count < 1 or length < 2:
        raise ValueError(f"no canary of {count} x {length} tokens out of {vocabulary_size}")
    drawn = np.random.default_rng(seed).integers(0, vocabulary_size, (count, length))
    return [array("i", row.tolist()) for row in drawn]


def with_parent(canaries: Sequence[Canary], parent: Sequence[Canary]) -> list[Canary]:
    """Returns ``canaries`` with the log-probabilities of the same tokens under the ``parent`` version."""
    known = {bytes(each.token_ids): each.logprobs for each in parent}
    return [each.model_copy(update={"parent_logprobs": known.get(bytes(each.token_ids))}) for each in canaries]


def max_error(canaries: Sequence[Canary], engine_logprobs: Sequence[Sequence[float]]) -> float:
    """Returns the largest absolute difference between the canaries' log-probabilities and an engine's, in nats.

    ``engine_logprobs[i]`` has one value for each token of canary i after the first. A value that is not finite gives
    infinity, and so does a missing comparison (no canaries). Raises ``ValueError`` if the shapes differ.
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
