"""The learner: a model, its optimiser, and what one step does to them. Knows torch and nothing of the log."""

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from headrace.schemas.records import Canary
from headrace.trainer.batch import Batch, select_sequences
from headrace.trainer.canary import make_prompts
from headrace.trainer.config import TrainerConfig
from headrace.trainer.losses.registry import loss_named
from headrace.trainer.metrics import mismatch_metrics, staleness_metrics
from headrace.trainer.model import token_logprobs, vocabulary_size
from headrace.trainer.packing import Floats, Ints, pack, plan_passes

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter."""


class TrainingDiverged(RuntimeError):
    """The loss or its gradient is not a number; the weights are those from before the step."""


@dataclass(slots=True)
class _Tally:
    """What the passes of a batch add up to."""

    loss: float = 0.0
    clipped: Counter[str] = field(default_factory=Counter)
    entropy: float = 0.0
    logprobs: list[Floats] = field(default_factory=list)
    behaviour: list[Floats] = field(default_factory=list)
    lags: list[Ints] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)


class Learner:
    """Takes optimiser steps on batches."""

    def __init__(self, model: PreTrainedModel, config: TrainerConfig) -> None:
        """A learner of ``model``, in place."""
        self.model = model
        self._config = config
        self._loss = loss_named(config.loss)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )

    def step(self, batch: Batch, version: int) -> dict[str, float]:
        """Train policy ``version`` on ``batch``; returns the step's metrics.

        Each of the batch's sequences is in one of ``substeps`` updates, and in one pass of it. Raises
        :class:`TrainingDiverged` where the loss or the gradient is not finite, before that update is made.
        """
        tally = _Tally()
        sequences = len(batch.packed.lengths)
        for part in np.array_split(np.arange(sequences), min(self._config.substeps, sequences)):
            self._update(
                select_sequences(batch, part.tolist()), len(batch.rewards) * len(part) / sequences, version, tally
            )
        tokens = len(batch.packed.targets)
        return {
            "loss": tally.loss / len(tally.grad_norms),
            "reward_mean": float(batch.rewards.mean()),
            "advantage_abs_mean": float(np.abs(batch.advantages).mean()),
            "entropy": tally.entropy / tokens,
            "grad_norm": max(tally.grad_norms),
            **{name: count / tokens for name, count in tally.clipped.items()},
            **mismatch_metrics(
                np.concatenate(tally.logprobs), np.concatenate(tally.behaviour), np.concatenate(tally.lags)
            ),
            **staleness_metrics(version - batch.versions),
            "tokens_trained": float(tokens),
            "tokens_read": float(len(batch.packed.token_ids)),
            "sequences": float(sequences),
            "trajectories": float(len(batch.rewards)),
        }

    def _update(self, batch: Batch, trajectories: float, version: int, tally: _Tally) -> None:
        """One optimiser update on all sequences of ``batch``, a pass at a time."""
        divisor = trajectories * self._config.constant_length
        self._optimizer.zero_grad(set_to_none=True)
        for chosen in plan_passes(batch.packed.lengths, self._config.max_tokens_per_pass):
            part = select_sequences(batch, chosen)
            result = token_logprobs(self.model, part.packed)
            device = result.logprobs.device
            loss, counts = self._loss(
                result.logprobs,
                torch.from_numpy(part.behaviour_logprobs).to(device),
                torch.from_numpy(part.advantages).to(device),
                divisor,
                self._config.loss_settings,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            tally.loss += loss.item()
            tally.entropy += result.entropy.sum().item()
            tally.clipped.update({name: int(count) for name, count in counts.items()})
            tally.logprobs.append(result.logprobs.detach().cpu().numpy())
            tally.behaviour.append(part.behaviour_logprobs)
            tally.lags.append(version - part.versions)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._config.max_grad_norm).item()
        if not (math.isfinite(tally.loss) and math.isfinite(norm)):
            raise TrainingDiverged(
                f"loss {tally.loss}, gradient norm {norm} while training version {version}: "
                "lower learning_rate, or look at the batch named in the alert"
            )
        tally.grad_norms.append(norm)
        self._optimizer.step()

    @torch.no_grad()
    def canaries(self, seed: int) -> list[Canary]:
        """Token sequences drawn by ``seed`` with the present policy's log-probabilities.

        Raises :class:`TrainingDiverged` where one is not a number: such a policy must not be published.
        """
        prompts = make_prompts(
            vocabulary_size(self.model), seed, count=self._config.canaries, length=self._config.canary_length
        )
        packed = pack([(prompt, [0] + [1] * (len(prompt) - 1)) for prompt in prompts])
        logprobs = token_logprobs(self.model, packed).logprobs.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise TrainingDiverged("the policy gives log-probabilities that are not numbers: lower learning_rate")
        rows: Sequence[Floats] = np.split(logprobs, len(prompts))
        return [
            Canary(token_ids=prompt, logprobs=array("f", row.tolist()))
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimiser's state by ``<moment>/<parameter>``, and torch's generator; empty moments before a step."""
        tensors = {"rng": torch.get_rng_state()}
        for name, parameter in self.model.named_parameters():
            state = self._optimizer.state.get(parameter, {})
            tensors |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS if moment in state}
        return tensors

    def restore_optimizer(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up a state that :meth:`optimizer_tensors` gave; raises ``ValueError`` where it is of another model."""
        known = {f"{moment}/{name}" for name, _ in self.model.named_parameters() for moment in _MOMENTS} | {"rng"}
        if not set(tensors) <= known:
            raise ValueError("the checkpoint's optimiser is of another model: choose another checkpoint_dir")
        torch.set_rng_state(tensors["rng"])
        for name, parameter in self.model.named_parameters():
            state = {moment: tensors[f"{moment}/{name}"] for moment in _MOMENTS if f"{moment}/{name}" in tensors}
            if state:
                self._optimizer.state[parameter] = state
