"""Random batches, the same for headrace and for the references: padded matrices in float32."""

from typing import NamedTuple

import numpy as np


class RandomBatch(NamedTuple):
    """Axis legend: B answers, L tokens of the longest."""

    logprobs: np.ndarray
    """(B, L) float32 under the trained policy."""
    behaviour: np.ndarray
    """(B, L) float32 under the behaviour policy."""
    prox: np.ndarray
    """(B, L) float32 under the policy before the step."""
    advantages: np.ndarray
    """(B,) float32."""
    mask: np.ndarray
    """(B, L) bool: a token, and not padding."""


def random_batch(seed: int, *, spread: float = 0.3) -> RandomBatch:
    """Eight answers of 1 to 24 tokens; ``spread`` is the deviation of the log-ratios."""
    random = np.random.default_rng(seed)
    lengths_B = random.integers(1, 25, 8)
    shape = (8, int(lengths_B.max()))
    logprobs_BL = -random.exponential(1.5, shape) - 0.01
    prox_BL = logprobs_BL - random.normal(0, spread, shape)
    behaviour_BL = prox_BL - random.normal(0, spread, shape)
    mask_BL = np.arange(shape[1]) < lengths_B[:, None]
    matrices = (np.where(mask_BL, values, -1.0).astype(np.float32) for values in (logprobs_BL, behaviour_BL, prox_BL))
    return RandomBatch(*matrices, random.normal(0, 1, 8).astype(np.float32), mask_BL)
