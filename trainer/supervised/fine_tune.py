"""Supervised fine-tuning on token sequences with masks: how a base model learns to speak before it is reinforced.

Generic: an example is token ids and which of them to imitate. Nothing here knows where examples come from.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.trainer.batches.packing import pack, plan_passes
from headrace.trainer.learning.optimizers import Optimizer, OptimizerSettings
from headrace.trainer.learning.schedules import RateShape, ScheduleSettings, rate_share
from headrace.trainer.model import attention
from headrace.trainer.parallel.policy import WholePolicy

MAX_TOKENS_PER_PASS = 8192
"""Tokens of one forward and backward where nothing else is said."""


@dataclass(frozen=True, slots=True)
class TuningExample:
    """A sequence to imitate in part; axis T tokens."""

    token_ids: Sequence[int]
    """(T,)"""
    mask: Sequence[int]
    """(T,) 1 on tokens to imitate. The first token has no context and is never imitated."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.mask):
            raise ValueError(f"{len(self.token_ids)} token_ids with a mask of {len(self.mask)}")
        if not any(self.mask[1:]):
            raise ValueError("an example needs a token to imitate after its first")

    @property
    def imitated(self) -> int:
        """Tokens to imitate."""
        return sum(self.mask[1:])


@dataclass(frozen=True, slots=True)
class SupervisedConfig:
    """How to fine-tune."""

    steps: int = 2000
    """Optimiser steps."""
    batch_size: int = 64
    """Sequences a step."""
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(learning_rate=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    )
    """What moves the weights."""
    schedule: ScheduleSettings = field(
        default_factory=lambda: ScheduleSettings(shape=RateShape.COSINE, warmup_steps=100, final_share=0.1)
    )
    """The learning rate over the steps; without ``decay_steps`` it comes down over all of them."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    seed: int = 0
    """Order of the examples."""
    report_every: int = 50
    """Steps between two reports, each with the loss on all held-out examples."""
    keep_every: int = 500
    """Steps after which a stage that is interrupted goes on."""
    max_tokens_per_pass: int = MAX_TOKENS_PER_PASS
    """Tokens of one forward and backward: bounds memory, changes nothing else."""
    dtype: str = "float32"
    """Type that passes compute in and the result is written in: ``float32`` or ``bfloat16``. The weights that are
    trained and their gradients are float32 either way."""

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r}: choose float32 or bfloat16")
        for name in ("steps", "batch_size", "report_every", "keep_every", "max_tokens_per_pass"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch has it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def whole_schedule(self) -> ScheduleSettings:
        """The schedule, over all steps where it does not say over how many."""
        schedule = self.schedule
        if schedule.shape == RateShape.CONSTANT or schedule.decay_steps is not None:
            return schedule
        # A run that is shorter than its warm-up never gets to the decay.
        return replace(schedule, decay_steps=max(self.steps, schedule.warmup_steps + 1))


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """A report on the way."""

    step: int
    steps: int
    loss: float
    """Mean over the steps since the last report, nats per imitated token."""
    held_out_loss: float
    """Nats per imitated token of examples that are never trained on."""
    seconds: float
    """Since the start, or since it was taken up again."""
    taken: int
    """Steps taken in these seconds."""

    @property
    def remaining_s(self) -> float:
        """Estimated seconds to the end, at the pace so far."""
        return self.seconds / self.taken * (self.steps - self.step)


Keep = Callable[[int, Optimizer], None]
"""Told the number of steps taken, and the optimiser, when both and the model are to be kept."""


def fine_tune(
    model: PreTrainedModel,
    examples: Sequence[TuningExample],
    held_out: Sequence[TuningExample],
    config: SupervisedConfig,
    report: Callable[[TuningProgress], None],
    *,
    start: int = 0,
    optimizer_state: Mapping[str, Tensor] | None = None,
    keep: Keep | None = None,
) -> TuningProgress:
    """Train ``model``, a causal language model, in place; returns the last report.

    The order of examples follows from ``config.seed`` alone. ``keep`` is called every ``config.keep_every`` steps but
    the last; with the model and the optimiser's tensors of then, ``start`` steps taken, training goes on to the same
    weights, bit for bit on one kind of processor. Raises ``ValueError`` without examples or with a ``start`` past the
    end, and ``FloatingPointError`` when the loss or the gradient is no longer finite. Dropout is off.
    """
    if not examples or not held_out:
        raise ValueError("fine_tune needs examples to train on and others to hold out")
    if not 0 <= start < config.steps:
        raise ValueError(f"{start} of {config.steps} steps are taken: there is nothing left to train")
    optimizer, schedule = Optimizer(model, config.optimizer), config.whole_schedule()
    optimizer.restore(optimizer_state or {})
    started = time.monotonic()
    total, since = 0.0, 0
    policy = WholePolicy(model, config.torch_dtype)
    # No dropout, as in the trainer: its noise would follow from no seed, and an activation that is computed again for
    # the backward pass would meet another.
    model.train(False)
    with attention.packed(model):
        for step, batch in enumerate(islice(_batches(examples, config), start, None), start=start + 1):
            optimizer.set_rate(rate_share(schedule, step - 1))
            optimizer.zero_grad()
            loss, imitated = 0.0, sum(example.imitated for example in batch)
            for part in _passes(batch, config.max_tokens_per_pass):
                summed = _summed_loss(policy, part)
                policy.backward(summed / imitated, last=False)
                loss += summed.item() / imitated
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {step}: lower learning_rate")
            norm = optimizer.clip(config.max_grad_norm)
            if not math.isfinite(norm):
                raise FloatingPointError(f"the gradient's norm is {norm} at step {step}: lower learning_rate")
            optimizer.step()
            total, since = total + loss, since + 1
            if step % config.report_every == 0 or step == config.steps:
                loss_there = held_out_loss(model, held_out, config.max_tokens_per_pass, config.torch_dtype)
                seconds = time.monotonic() - started
                progress = TuningProgress(step, config.steps, total / since, loss_there, seconds, step - start)
                report(progress)
                total, since = 0.0, 0
            if keep is not None and step % config.keep_every == 0 and step < config.steps:
                keep(step, optimizer)
    return progress


@torch.no_grad()
def held_out_loss(
    model: PreTrainedModel,
    examples: Sequence[TuningExample],
    max_tokens_per_pass: int = MAX_TOKENS_PER_PASS,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Nats per imitated token over ``examples``, computed in ``dtype``; the model's mode is left as it was."""
    training = model.training
    model.train(False)
    with attention.packed(model):
        policy = WholePolicy(model, dtype)
        total = sum(_summed_loss(policy, part).item() for part in _passes(examples, max_tokens_per_pass))
    model.train(training)
    return total / sum(example.imitated for example in examples)


def _batches(examples: Sequence[TuningExample], config: SupervisedConfig) -> Iterator[list[TuningExample]]:
    """``config.steps`` batches, epoch after epoch in a fresh order.

    Runs of batches are sorted by length and cut: sequences of a batch are about as long as one another, which
    attention's rectangles like, and the batches of a run are shuffled again.
    """
    generator = torch.Generator().manual_seed(config.seed)
    window = 16 * config.batch_size
    made = 0
    while True:
        order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(0, len(order), window):
            run = sorted(order[start : start + window], key=lambda index: len(examples[index].token_ids))
            cuts = range(0, len(run), config.batch_size)
            for cut in torch.randperm(len(cuts), generator=generator).tolist():
                indices = run[cuts[cut] : cuts[cut] + config.batch_size]
                yield [examples[index] for index in indices]
                made += 1
                if made == config.steps:
                    return


def _passes(batch: Sequence[TuningExample], max_tokens: int) -> list[list[TuningExample]]:
    """``batch`` in passes of at most ``max_tokens`` tokens."""
    lengths = [len(example.token_ids) for example in batch]
    return [[batch[index] for index in chosen] for chosen in plan_passes(lengths, max_tokens)]


def _summed_loss(policy: WholePolicy, batch: Sequence[TuningExample]) -> Tensor:
    """Σ −log p over the imitated tokens of ``batch``, in nats."""
    packed = pack([(example.token_ids, [0, *example.mask[1:]]) for example in batch])
    return -policy.logprobs(packed).logprobs.sum()
