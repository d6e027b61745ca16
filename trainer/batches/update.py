"""An update: the trajectories of one optimiser update, and the weight of each of their tokens in the loss.

Axis legend: N sampled tokens, S sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headrace.trainer.batches.batch import Batch, owners_of_sequences, select_sequences
from headrace.trainer.batches.packing import Floats, Ints
from headrace.trainer.losses.loss import Loss, LossTokens, Objective
from headrace.trainer.losses.normaliser import normalise
from headrace.trainer.losses.settings import Normaliser


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """Some of a batch's trajectories, each with all of its tokens."""

    batch: Batch
    """Their tokens."""
    anchor_logprobs: Floats
    """(N,) log-probability under the policy that the loss measures its ratio against."""
    weights: Floats
    """(N,) factor of the token's objective; 0 exactly where the token is masked."""
    divisor: float = 1.0
    """Divisor of the weighted sum over all N tokens; 0 if all of them are masked."""

    def select(self, sequences: Sequence[int]) -> tuple["Update", Ints]:
        """Returns some of the sequences and the indices of their tokens; weights and divisor stay the same."""
        batch, kept = select_sequences(self.batch, sequences)
        part = replace(self, batch=batch, anchor_logprobs=self.anchor_logprobs[kept], weights=self.weights[kept])
        return part, kept

    def normalised(self, loss: Loss, constant_length: int) -> "Update":
        """Returns the update with the weights and the divisor of the loss's normaliser."""
        weights_N, divisor = normalise(
            torch.from_numpy(self.weights > 0),
            torch.from_numpy(self.batch.trajectories),
            loss.normaliser,
            constant_length=constant_length,
        )
        return replace(self, weights=self.weights * weights_N.numpy(), divisor=divisor)

    def parts(self, count: int) -> Iterator["Update"]:
        """Yield ``count`` updates on disjoint trajectories, or one for each trajectory if there are fewer.

        They keep the batch's order: their concatenated tokens are the batch's.
        """
        owners = owners_of_sequences(self.batch)
        trajectories = np.unique(owners)
        for part in np.array_split(trajectories, min(count, len(trajectories))):
            yield self.select(np.flatnonzero(np.isin(owners, part)).tolist())[0]

    @property
    def longest_trajectory(self) -> int:
        """Tokens of the largest trajectory, over all its sequences."""
        return int(np.bincount(owners_of_sequences(self.batch), weights=self.batch.packed.lengths).max())

    def linearised(
        self, loss: Loss, logprobs_N: Floats, advantages_N: torch.Tensor
    ) -> tuple["Update", float, dict[str, int]]:
        """Returns the update for the loss :data:`LINEAR`, the loss of this update, and its clipped tokens.

        The new update has the same gradient, but its tokens are independent, so that it can be divided into any passes.
        ``logprobs_N`` (N,) are those of the policy that the passes run: the weights are the gradient there.
        """
        logprobs = torch.from_numpy(logprobs_N).requires_grad_()
        value, clipped = pass_loss(loss, self, logprobs, advantages_N)
        (gradient_N,) = torch.autograd.grad(value, logprobs)
        return replace(self, weights=-gradient_N.numpy() * np.float32(self.divisor or 1.0)), value.item(), clipped


def _each_token(tokens: LossTokens) -> Objective:
    never = torch.zeros_like(tokens.logprobs, dtype=torch.bool)
    return Objective(values=tokens.logprobs, clipped_low=never, clipped_high=never)


LINEAR = Loss(_each_token, Normaliser.TOKEN_MEAN)
"""Weighted log-probabilities, which :meth:`Update.linearised` makes of a loss. Its own value has no meaning."""


def pass_loss(
    loss: Loss, part: Update, logprobs_N: torch.Tensor, advantages_N: torch.Tensor
) -> tuple[torch.Tensor, dict[str, int]]:
    """Returns what one pass adds to the loss of its update, and the number of tokens whose ratio was clipped.

    ``logprobs_N`` (N,) under the policy that is trained, with a gradient; ``advantages_N`` (N,) without.
    """
    kept = slice(None) if part.weights.all() else np.flatnonzero(part.weights)

    def column(values_N: Floats | Ints) -> torch.Tensor:
        return torch.from_numpy(values_N[kept]).to(logprobs_N.device)

    objective = loss.objective(
        LossTokens(
            logprobs=logprobs_N[kept],
            anchor_logprobs=column(part.anchor_logprobs),
            behaviour_logprobs=column(part.batch.behaviour_logprobs),
            advantages=advantages_N[kept],
            trajectories=column(part.batch.trajectories),
        )
    )
    value = -(objective.values * column(part.weights)).sum() / (part.divisor or 1.0)
    clipped = {
        "clip_fraction_low": int(objective.clipped_low.sum()),
        "clip_fraction_high": int(objective.clipped_high.sum()),
    }
    return value, clipped
