"""The learner: a model, its optimiser, and the training step. Uses torch, and does not use the log."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from headrace.schemas.records.reward import HintRefusal
from headrace.schemas.records.weights import Canary
from headrace.trainer.batches.balance import plan_ranks
from headrace.trainer.batches.batch import Batch, owners_of_sequences, select_sequences
from headrace.trainer.batches.packing import Floats, pack
from headrace.trainer.batches.update import LINEAR, Update, pass_loss
from headrace.trainer.learning.divergence import TrainingDiverged, check_numbers, not_finite
from headrace.trainer.learning.hint_passes import HintedTurn, distil, hint_metrics, hinted_turns
from headrace.trainer.learning.metrics import mismatch_metrics, reference_kl, staleness_metrics, substep_metrics
from headrace.trainer.learning.optimizer_state import read_state, write_state
from headrace.trainer.learning.optimizers import Optimizer
from headrace.trainer.learning.plausibility import ImplausibleLogprobs, implausible_trajectories
from headrace.trainer.learning.schedules import rate_share
from headrace.trainer.learning.settings import LearnerSettings
from headrace.trainer.losses.corrections import correct
from headrace.trainer.losses.kl import penalised_advantages
from headrace.trainer.model.load import longest_sequence, save_model, vocabulary_size, weights_sha256
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.model.precision import unpublished_weights
from headrace.trainer.model.published import as_published, published_tensors
from headrace.trainer.parallel.policy import TrainerPolicy, WholePolicy, open_policy
from headrace.trainer.parallel.ranks import ALONE, Ranks
from headrace.trainer.weights.canary import make_prompts

_SUMS = ("loss", "clip_fraction_low", "clip_fraction_high")
"""Values that are summed over passes, ranks and updates."""
_WEIGHT, _RNG, _BASE = "weight/", "rng", "base_sha256"


@dataclass(frozen=True, eq=False, slots=True)
class _Evaluation:
    """A policy's log-probabilities and entropies of a batch's tokens, over all ranks."""

    logprobs: Floats
    """(N,) log-probability."""
    entropy: Floats
    """(N,) entropy in nats of the distribution that the token was drawn from."""


@dataclass(slots=True)
class _BatchTotals:
    """Totals of a batch's updates, over all ranks; their concatenated tokens are the batch's."""

    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(_SUMS)))
    grad_norms: list[float] = field(default_factory=list)
    evaluations: list[_Evaluation] = field(default_factory=list)
    """By the policy before each update."""
    reference: list[Floats] = field(default_factory=list)
    """(N,) each: log-probabilities under the KL penalty's reference; empty without a penalty."""
    hint_divergence: float = 0.0
    """Sum over the hinted tokens, in nats, each before its update."""

    def evaluation(self) -> _Evaluation:
        """Returns the evaluation of each token by the policy before the update that trained it."""
        return _Evaluation(
            np.concatenate([each.logprobs for each in self.evaluations]),
            np.concatenate([each.entropy for each in self.evaluations]),
        )


class Learner:
    """Takes gradient steps on batches. Every method is called by all ranks of the job, with the same arguments."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: LearnerSettings,
        reference: PreTrainedModel | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Trains ``model`` in place; ``reference`` is the frozen base model, if the KL penalty needs it.

        Raises ``ValueError`` if it is needed and missing, or given and not needed.
        """
        if settings.kl.needs_base != (reference is not None):
            raise ValueError("kl: the base model is given exactly if the penalty's reference is base")
        self.model = model
        self._settings = settings
        self._ranks = ranks
        self._loss = settings.loss
        self._dtype: torch.dtype = getattr(torch, settings.model.dtype)
        self._policy = open_policy(model, self._dtype, ranks, settings.parallel)
        self._reference = None if reference is None else open_policy(reference, self._dtype, ranks, settings.parallel)
        self._optimizer = Optimizer(model, settings.optimizer)
        self._base = b""
        self._unpublished = unpublished_weights(model, self._dtype)

    def step(self, batch: Batch, version: int, *, norm_limit: float = math.inf) -> dict[str, float]:
        """Train policy ``version`` on ``batch``; returns the step's metrics.

        Each of the batch's trajectories is in one of ``substeps`` updates, each of its sequences in one pass of it.
        Raises :class:`TrainingDiverged` if the loss or the gradient is not finite, or the gradient's norm is above
        ``norm_limit``: before that update, but after earlier updates. Raises :class:`ImplausibleLogprobs` if recorded
        log-probabilities are implausible, before the first update.
        """
        totals = _BatchTotals()
        learning_rate = self._optimizer.set_rate(rate_share(self._settings.schedule, version))
        several = min(self._settings.substeps, len(batch.rewards)) > 1
        # A single update evaluates the policy before the step in its own pass.
        known = self._evaluate(batch) if several or self._loss.proximal else None
        if known is not None:
            self._check_plausible(batch, version, known)
        prox = known.logprobs if known is not None and self._loss.proximal else batch.behaviour_logprobs
        corrected = correct(
            torch.from_numpy(prox),
            torch.from_numpy(batch.behaviour_logprobs),
            torch.from_numpy(version - batch.versions),
            torch.from_numpy(batch.trajectories),
            self._settings.correction,
        )
        whole = Update(batch, prox, corrected.weights.numpy())
        hinted, refused = self._hinted_turns(whole)
        for part in whole.parts(self._settings.substeps):
            update = part.normalised(self._loss, self._settings.constant_length)
            turns = [turn for turn in hinted if turn.trajectory in part.batch.trajectories]
            self._update(update, turns, version, totals, norm_limit, check_record=known is None)
        trained = totals.evaluation()
        before = trained if known is None else known
        tokens = len(batch.packed.targets)
        loss, clipped_low, clipped_high = totals.sums.tolist()
        kept = max(corrected.metrics["tokens_kept"], 1)
        metrics = {
            "loss": loss / len(totals.grad_norms),
            "reward_mean": float(batch.rewards.mean()),
            "advantage_abs_mean": float(np.abs(batch.advantages).mean()),
            "entropy": float(before.entropy.mean(dtype=np.float64)),
            "grad_norm": max(totals.grad_norms),
            "learning_rate": learning_rate,
            "clip_fraction_low": clipped_low / kept,
            "clip_fraction_high": clipped_high / kept,
            **corrected.metrics,
            **mismatch_metrics(before.logprobs, batch.behaviour_logprobs, version - batch.versions),
            **staleness_metrics(version - batch.versions),
            "tokens_trained": float(tokens),
            "tokens_read": float(len(batch.packed.token_ids)),
            "sequences": float(len(batch.packed.lengths)),
            "trajectories": float(len(batch.rewards)),
        }
        if several:
            metrics |= substep_metrics(before.logprobs, trained.logprobs)
        if self._settings.kl.coefficient:
            metrics |= reference_kl(before.logprobs, batch.behaviour_logprobs, np.concatenate(totals.reference))
        if self._settings.hints.weight:
            metrics |= hint_metrics(hinted, refused, totals.hint_divergence)
        return metrics

    def _hinted_turns(self, whole: Update) -> tuple[list[HintedTurn], Mapping[HintRefusal, int]]:
        """Returns the turns whose hints are distilled, and the number of refused hints by reason."""
        if not self._settings.hints.weight:
            return [], {}
        return hinted_turns(
            whole.batch,
            whole.weights > 0,
            vocabulary=vocabulary_size(self.model),
            longest=longest_sequence(self.model),
        )

    def _update(
        self,
        update: Update,
        hinted: Sequence[HintedTurn],
        version: int,
        totals: _BatchTotals,
        norm_limit: float,
        *,
        check_record: bool,
    ) -> None:
        """Make one optimiser update, pass by pass, those of the ``hinted`` turns last. ``check_record``: check first
        that the record is plausible."""
        self._optimizer.zero_grad()
        loss, whole = self._loss, dict[str, float]()
        if loss.whole_trajectories and update.longest_trajectory > self._settings.max_tokens_per_pass:
            update, whole = self._linearised(update)
            loss = LINEAR
        logprobs, entropy, reference = (np.zeros_like(update.weights) for _ in range(3))
        sums = np.zeros(len(_SUMS))
        plan = self._plan(update.batch, whole_trajectories=loss.whole_trajectories)
        for number, chosen in enumerate(plan, start=1):
            part, tokens = update.select(chosen)
            # If every token is masked there is no divisor: without a gradient the optimiser changes nothing.
            with torch.set_grad_enabled(update.divisor > 0):
                result = self._policy.logprobs(part.batch.packed)
                advantages, compared = self._advantages(part, result.logprobs)
                value, clipped = pass_loss(loss, part, result.logprobs, advantages)
            if update.divisor > 0:
                self._policy.backward(value, last=number == len(plan) and not hinted)
            logprobs[tokens] = result.logprobs.detach().cpu().numpy()
            entropy[tokens] = result.entropy.cpu().numpy()
            reference[tokens] = compared.cpu().numpy()
            added = {"loss": value.item(), **clipped}
            sums += np.array([added[name] for name in _SUMS])
        # Before anything raises: with reduce_every_pass = False the last pass of all sends the gradients.
        settings, most = self._settings.hints, self._settings.max_tokens_per_pass
        divergence = distil(self._policy, self._ranks, hinted, settings, max_tokens=most)
        evaluation = _Evaluation(self._ranks.sum(logprobs), self._ranks.sum(entropy))
        if check_record:
            self._check_plausible(update.batch, version, evaluation)
        sums = self._ranks.sum(sums)
        for name, known in whole.items():
            sums[_SUMS.index(name)] = known
        norm = self._optimizer.clip(self._settings.max_grad_norm)
        check_numbers(sums[0] + divergence, norm, limit=norm_limit, version=version)
        self._optimizer.step()
        totals.sums += sums
        totals.hint_divergence += divergence
        totals.evaluations.append(evaluation)
        if self._settings.kl.coefficient:
            totals.reference.append(self._ranks.sum(reference))
        totals.grad_norms.append(norm)

    def _check_plausible(self, batch: Batch, version: int, before: _Evaluation) -> None:
        """Raises :class:`ImplausibleLogprobs`, on all ranks alike: their evaluations are bit-identical."""
        found = implausible_trajectories(
            before.logprobs,
            batch.behaviour_logprobs,
            version - batch.versions,
            batch.trajectories,
            self._settings.plausibility,
        )
        if found:
            raise ImplausibleLogprobs(found)

    def _linearised(self, update: Update) -> tuple[Update, dict[str, float]]:
        """Returns the update with independent tokens, for a trajectory too long for one pass, and its sums.

        It costs one more forward pass; the gradient is the same.
        """
        logprobs = self._evaluate(update.batch).logprobs
        reference = None if self._reference is None else self._evaluate(update.batch, self._reference).logprobs
        advantages, _ = self._advantages(update, torch.from_numpy(logprobs), reference)
        linear, loss, clipped = update.linearised(self._loss, logprobs, advantages)
        return linear, {"loss": loss, **clipped}

    def _plan(self, batch: Batch, *, whole_trajectories: bool = False) -> list[list[int]]:
        """Returns the passes of this rank, as numbers of the batch's sequences."""
        owners = owners_of_sequences(batch) if whole_trajectories else None
        plan = plan_ranks(
            batch.packed.lengths,
            self._settings.max_tokens_per_pass,
            self._ranks.count,
            crossover=self._policy.crossover,
            owners=owners,
        )
        return plan[self._ranks.rank]

    def _advantages(
        self, part: Update, logprobs_N: torch.Tensor, reference_N: Floats | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the (N,) advantages of a pass, less the KL penalty, and the (N,) log-probabilities of its reference.

        ``reference_N`` (N,) are the latter, if known already. Without a penalty they are zeros.
        """
        advantages_N = torch.from_numpy(part.batch.advantages).to(logprobs_N.device)
        kl = self._settings.kl
        if not kl.coefficient:
            return advantages_N, torch.zeros_like(advantages_N)
        if reference_N is not None or self._reference is None:
            known_N = part.batch.behaviour_logprobs if reference_N is None else reference_N
            compared_N = torch.from_numpy(known_N).to(logprobs_N.device)
        else:
            with torch.no_grad():
                compared_N = self._reference.logprobs(part.batch.packed).logprobs
        return penalised_advantages(advantages_N, logprobs_N, compared_N, kl.coefficient), compared_N

    @torch.no_grad()
    def _evaluate(self, batch: Batch, policy: TrainerPolicy | None = None) -> _Evaluation:
        """Returns the evaluation of ``batch`` by ``policy``, or by the current one."""
        logprobs, entropy = (np.zeros(len(batch.packed.targets), np.float32) for _ in range(2))
        for chosen in self._plan(batch):
            part, tokens = select_sequences(batch, chosen)
            result = (policy or self._policy).logprobs(part.packed)
            logprobs[tokens], entropy[tokens] = result.logprobs.cpu().numpy(), result.entropy.cpu().numpy()
        return _Evaluation(self._ranks.sum(logprobs), self._ranks.sum(entropy))

    @property
    def exact_canaries(self) -> bool:
        """Whether canaries are computed in float32 from the published weights. Those of sharded policies in bfloat16
        are not, because FSDP2 rounds the inputs of each layer to the type of passes."""
        return self._dtype == torch.float32 or isinstance(self._policy, WholePolicy)

    @torch.no_grad()
    def canaries(self, seed: int) -> list[Canary]:
        """Returns token sequences drawn by ``seed`` with their log-probabilities under the current policy as published.

        They are computed in float32 if :attr:`exact_canaries`, else in the type of passes. Raises
        :class:`TrainingDiverged` if one is not finite: such a policy must not be published.
        """
        count, length = self._settings.canary_shape
        length = min(length, longest_sequence(self.model))
        prompts = make_prompts(vocabulary_size(self.model), seed, count=count, length=length)
        together = max(1, self._settings.max_tokens_per_pass // len(prompts[0]))
        found = []
        whole = isinstance(self._policy, WholePolicy)
        with as_published(self.model, self._dtype if whole else None):
            for first in range(0, len(prompts), together):
                chosen = prompts[first : first + together]
                packed = pack([(prompt, [0] + [1] * (len(prompt) - 1)) for prompt in chosen])
                # The published weights have their type already; the policy would make copies in the type of passes.
                result = token_logprobs(self.model, packed) if whole else self._policy.logprobs(packed)
                found.append(result.logprobs.cpu().numpy())
        logprobs = np.concatenate(found)
        if not np.isfinite(logprobs).all():
            raise TrainingDiverged("the policy gives log-probabilities that are not finite: lower learning_rate")
        rows: Sequence[Floats] = np.split(logprobs, len(prompts))
        return [
            Canary(token_ids=prompt, logprobs=array("f", row.tolist()))
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def check_weights(self) -> None:
        """Raises :class:`TrainingDiverged` naming a parameter with values that are not finite, if there is one."""
        names = [name for name, _ in self.model.named_parameters()]
        broken = self._ranks.largest(max(map(names.index, not_finite(self.model)), default=-1))
        if broken >= 0:
            raise TrainingDiverged(f"{names[broken]} holds values that are not finite")

    def write_model(self, folder: Path) -> None:
        """Write the policy as a Hugging Face directory, on rank 0, with the base model's tokenizer.

        Raises ``OSError`` if it cannot be written.
        """
        tensors = published_tensors(self.model, self._dtype, keep=self._ranks.leads)
        if self._ranks.leads:
            save_model(self.model, folder, tensors, tokenizer_from=self._settings.model.base_dir)

    def write_optimizer(self, folder: Path) -> None:
        """Write the optimiser's state, each rank its shard; raises ``OSError`` if it cannot be written."""
        write_state(self.optimizer_tensors(), folder, self._ranks)

    def read_optimizer(self, folder: Path) -> None:
        """Restore what :meth:`write_optimizer` wrote, on any number of ranks; raises as :meth:`restore_optimizer`."""
        self.restore_optimizer(read_state(folder, dict(self.model.named_parameters())))

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """Returns what a checkpoint holds in addition to the published model: the optimiser's state by
        ``<slot>/<parameter>``, torch's random state, and as ``weight/<parameter>`` the trained weights that were
        rounded or merged for publishing."""
        weights = {f"{_WEIGHT}{name}": weight.detach() for name, weight in self._unpublished.items()}
        return {**self._own_tensors(), **self._optimizer.tensors(), **weights}

    def restore_optimizer(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore a state from :meth:`optimizer_tensors`; raises ``ValueError`` if it is of another model."""
        own = self._own_tensors()
        if (base := own.get(_BASE)) is not None and _BASE in tensors and not torch.equal(base, tensors[_BASE]):
            raise ValueError(
                f"the checkpoint's adapters are for another base model than model_dir {self._settings.model.base_dir} "
                "holds: restore the one that the run began with, or choose another checkpoint_dir"
            )
        weights = {name.removeprefix(_WEIGHT) for name in tensors if name.startswith(_WEIGHT)}
        if weights != set(self._unpublished):
            raise ValueError(
                "the checkpoint was made with another dtype or lora: restore these settings, or choose another "
                "checkpoint_dir with its model as model_dir"
            )
        self._optimizer.restore(
            {name: tensor for name, tensor in tensors.items() if name not in own and not name.startswith(_WEIGHT)}
        )
        with torch.no_grad():
            for name, weight in self._unpublished.items():
                weight.copy_(tensors[f"{_WEIGHT}{name}"])
        torch.set_rng_state(tensors[_RNG])

    def _own_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the state of no parameter: torch's random state and, with adapters, the base model's hash."""
        own = {_RNG: torch.get_rng_state()}
        if self._settings.model.lora.rank:
            self._base = self._base or weights_sha256(self._settings.model.base_dir)
            own[_BASE] = torch.frombuffer(bytearray(self._base), dtype=torch.uint8)
        return own
