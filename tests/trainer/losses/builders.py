"""Builders of trajectories' tokens as columns, and the evaluation of a loss on a whole update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from headrace.trainer.batches.batch import Batch
from headrace.trainer.batches.packing import pack
from headrace.trainer.batches.update import Update, pass_loss
from headrace.trainer.losses.corrections import correct
from headrace.trainer.losses.registry import loss_named
from headrace.trainer.losses.settings import CorrectionSettings, LossSettings

UNCORRECTED = CorrectionSettings()


class Token(NamedTuple):
    """A sampled token: its log-probability under the policy, the behaviour policy, and the policy before the step."""

    logprob: float
    behaviour: float
    advantage: float = 1.0
    prox: float = 0.0
    lag: int = 0


def at_ratio(ratio: float, advantage: float = 1.0, *, prox_ratio: float = 1.0, lag: int = 0) -> Token:
    """A token of probability 0.2 with ρ = ``ratio`` and π_prox / π_b = ``prox_ratio``."""
    behaviour = math.log(0.2 / ratio)
    return Token(math.log(0.2), behaviour, advantage, behaviour + math.log(prox_ratio), lag)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of a loss."""

    loss: float
    gradient: list[float]
    """Gradient by the tokens' log-probabilities, in the given order."""
    clipped: dict[str, int]
    metrics: dict[str, float]


def columns(
    trajectories: Sequence[Sequence[Token]], segments: Sequence[int] | None = None, dtype: type = np.float64
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """(batch, logprobs_N, prox_logprobs_N); ``segments`` says into how many sequences a trajectory is divided."""
    parts = [
        piece
        for number, tokens in enumerate(trajectories)
        for piece in np.array_split(np.arange(len(tokens)), segments[number] if segments else 1)
        if len(piece)
    ]
    tokens = [token for trajectory in trajectories for token in trajectory]
    lengths = [len(trajectory) for trajectory in trajectories]
    logprobs, behaviour, advantages, prox, lags = (np.asarray(column, dtype) for column in zip(*tokens, strict=True))
    batch = Batch(
        packed=pack([([1] * (len(part) + 1), [0] + [1] * len(part)) for part in parts]),
        behaviour_logprobs=behaviour,
        advantages=advantages,
        versions=10 - lags.astype(np.int64),
        trajectories=np.repeat(np.arange(len(lengths)), lengths),
        rewards=np.zeros(len(lengths), np.float32),
    )
    return batch, logprobs, prox


def update_of(
    name: str,
    batch: Batch,
    prox: np.ndarray,
    *,
    correction: CorrectionSettings = UNCORRECTED,
    constant_length: int = 4,
    **settings: float | str,
) -> tuple[Update, dict[str, float]]:
    """The update of a whole batch, sampled before version 10, as the learner makes it."""
    loss = loss_named(name, LossSettings(**settings), correction)
    corrected = correct(
        *map(torch.from_numpy, (prox, batch.behaviour_logprobs, 10 - batch.versions, batch.trajectories)), correction
    )
    anchor = prox if loss.proximal else batch.behaviour_logprobs
    whole = Update(batch, anchor, corrected.weights.numpy())
    return whole.normalised(loss, constant_length), corrected.metrics


def evaluate(
    name: str,
    trajectories: Sequence[Sequence[Token]],
    *,
    passes: Sequence[Sequence[int]] | None = None,
    segments: Sequence[int] | None = None,
    dtype: type = np.float64,
    correction: CorrectionSettings = UNCORRECTED,
    constant_length: int = 4,
    **settings: float | str,
) -> Evaluated:
    """The loss ``name`` of whole trajectories, in one pass or in ``passes`` of sequences."""
    batch, logprobs, prox = columns(trajectories, segments, dtype)
    update, metrics = update_of(name, batch, prox, correction=correction, constant_length=constant_length, **settings)
    loss = loss_named(name, LossSettings(**settings), correction)
    everything = torch.from_numpy(logprobs).requires_grad_()
    total, clipped = 0.0, {"clip_fraction_low": 0, "clip_fraction_high": 0}
    for chosen in passes or [range(len(batch.packed.lengths))]:
        part, at = update.select(list(chosen))
        value, counts = pass_loss(loss, part, everything[at], torch.from_numpy(part.batch.advantages))
        value.backward()
        total += value.item()
        clipped = {name: clipped[name] + counts[name] for name in clipped}
    return Evaluated(total, everything.grad.tolist(), clipped, metrics)
