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
from headrace.trainer.batches.batch import Batch, select_sequences
from headrace.trainer.batches.packing import Floats, Ints, pack, plan_passes
from headrace.trainer.batches.update import Update, pass_loss
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.divergence import TrainingDiverged, check_numbers
from headrace.trainer.learning.metrics import mismatch_metrics, staleness_metrics
from headrace.trainer.learning.optimizers import Optimizer
from headrace.trainer.learning.schedules import rate_share
from headrace.trainer.losses.corrections import correct
from headrace.trainer.losses.kl import penalised_advantages
from headrace.trainer.model.load import vocabulary_size
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.weights.canary import make_prompts


@dataclass(slots=True)
class _Tally:
    """What the passes of a batch add up to."""

    loss: float = 0.0
    clipped: Counter[str] = field(default_factory=Counter)
    entropy: float = 0.0
    kl: float = 0.0
    logprobs: list[Floats] = field(default_factory=list)
    behaviour: list[Floats] = field(default_factory=list)
    lags: list[Ints] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)


class Learner:
    """Takes optimiser steps on batches."""

    def __init__(self, model: PreTrainedModel, config: TrainerConfig, reference: PreTrainedModel | None = None) -> None:
        """A learner of ``model``, in place; ``reference`` is the frozen base model, where the KL penalty needs it.

        Raises ``ValueError`` where it is needed and missing.
        """
        if config.kl.needs_base != (reference is not None):
            raise ValueError("kl: the reference base needs the base model beside the trained one, and only it does")
        self.model = model
        self._config = config
        self._reference = reference
        self._loss = config.chosen_loss()
        self._optimizer = Optimizer(model, config.optimizer)

    def step(self, batch: Batch, version: int, *, norm_limit: float = math.inf) -> dict[str, float]:
        """Train policy ``version`` on ``batch``; returns the step's metrics.

        Each of the batch's trajectories is in one of ``substeps`` updates, each of its sequences in one pass of it.
        Raises :class:`TrainingDiverged` where the loss or the gradient is not finite or the gradient's norm is above
        ``norm_limit``, before that update is made; updates before it were made.
        """
        tally = _Tally()
        learning_rate = self._optimizer.set_rate(rate_share(self._config.schedule, version))
        prox = self._logprobs(batch) if self._loss.proximal else batch.behaviour_logprobs
        corrected = correct(
            torch.from_numpy(prox),
            torch.from_numpy(batch.behaviour_logprobs),
            torch.from_numpy(version - batch.versions),
            torch.from_numpy(batch.trajectories),
            self._config.correction,
        )
        whole = Update(batch, prox, corrected.weights.numpy())
        for part in whole.parts(self._config.substeps):
            self._update(part.normalised(self._loss, self._config.constant_length), version, tally, norm_limit)
        tokens = len(batch.packed.targets)
        return {
            "loss": tally.loss / len(tally.grad_norms),
            "reward_mean": float(batch.rewards.mean()),
            "advantage_abs_mean": float(np.abs(batch.advantages).mean()),
            "entropy": tally.entropy / tokens,
            "grad_norm": max(tally.grad_norms),
            "learning_rate": learning_rate,
            **{name: count / max(corrected.metrics["tokens_kept"], 1) for name, count in tally.clipped.items()},
            **({"kl_reference": tally.kl / tokens} if self._config.kl.coefficient else {}),
            **corrected.metrics,
            **mismatch_metrics(
                np.concatenate(tally.logprobs), np.concatenate(tally.behaviour), np.concatenate(tally.lags)
            ),
            **staleness_metrics(version - batch.versions),
            "tokens_trained": float(tokens),
            "tokens_read": float(len(batch.packed.token_ids)),
            "sequences": float(len(batch.packed.lengths)),
            "trajectories": float(len(batch.rewards)),
        }

    def _update(self, update: Update, version: int, tally: _Tally, norm_limit: float) -> None:
        """One optimiser update, a pass at a time."""
        self._optimizer.zero_grad()
        for part in update.passes(self._loss, self._config.max_tokens_per_pass):
            result = token_logprobs(self.model, part.batch.packed)
            loss, clipped = pass_loss(self._loss, part, result.logprobs, self._advantages(part, result.logprobs, tally))
            if update.divisor:  # else every token is masked: without a gradient the optimiser moves nothing
                loss.backward()  # type: ignore[no-untyped-call]
            tally.loss += loss.item()
            tally.entropy += result.entropy.sum().item()
            tally.clipped.update(clipped)
            tally.logprobs.append(result.logprobs.detach().cpu().numpy())
            tally.behaviour.append(part.batch.behaviour_logprobs)
            tally.lags.append(version - part.batch.versions)
        norm = self._optimizer.clip(self._config.max_grad_norm)
        check_numbers(tally.loss, norm, limit=norm_limit, version=version)
        tally.grad_norms.append(norm)
        self._optimizer.step()

    def _advantages(self, part: Update, logprobs_N: torch.Tensor, tally: _Tally) -> torch.Tensor:
        """(N,) advantages of a pass, less the KL penalty."""
        advantages_N = torch.from_numpy(part.batch.advantages).to(logprobs_N.device)
        kl = self._config.kl
        if not kl.coefficient:
            return advantages_N
        if self._reference is None:
            reference_N = torch.from_numpy(part.batch.behaviour_logprobs).to(logprobs_N.device)
        else:
            with torch.no_grad():
                reference_N = token_logprobs(self._reference, part.batch.packed).logprobs
        tally.kl += (logprobs_N.detach() - reference_N).sum().item()
        return penalised_advantages(advantages_N, logprobs_N, reference_N, kl.coefficient)

    @torch.no_grad()
    def _logprobs(self, batch: Batch) -> Floats:
        """(N,) log-probabilities under the present policy."""
        logprobs = np.empty(len(batch.packed.targets), np.float32)
        for chosen in plan_passes(batch.packed.lengths, self._config.max_tokens_per_pass):
            part, tokens = select_sequences(batch, chosen)
            logprobs[tokens] = token_logprobs(self.model, part.packed).logprobs.cpu().numpy()
        return logprobs

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
        """The optimiser's state by ``<slot>/<parameter>``, and torch's generator."""
        return {"rng": torch.get_rng_state(), **self._optimizer.tensors()}

    def restore_optimizer(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up a state that :meth:`optimizer_tensors` gave; raises ``ValueError`` where it is of another model."""
        self._optimizer.restore({name: tensor for name, tensor in tensors.items() if name != "rng"})
        torch.set_rng_state(tensors["rng"])
