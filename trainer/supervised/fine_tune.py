"""Supervised fine-tuning on token sequences with masks, before reinforcement learning.

Generic: an example is token ids and a mask of those to imitate, whatever its origin.
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
"""Default tokens of a micro-batch (one forward and backward pass)."""


@dataclass(frozen=True, slots=True)
class TuningExample:
    """A sequence with tokens to imitate; axis T tokens."""

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
    """Settings of supervised fine-tuning."""

    steps: int = 2000
    """Optimiser steps."""
    batch_size: int = 64
    """Sequences per step."""
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(learning_rate=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    )
    """The optimiser."""
    schedule: ScheduleSettings = field(
        default_factory=lambda: ScheduleSettings(shape=RateShape.COSINE, warmup_steps=100, final_share=0.1)
    )
    """The learning rate over the steps; without ``decay_steps`` it decays over all of them."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    seed: int = 0
    """Seed of the order of the examples."""
    report_every: int = 50
    """Steps between reports, each with the loss on all held-out examples."""
    keep_every: int = 500
    """Steps between checkpoints, from which an interrupted stage resumes."""
    max_tokens_per_pass: int = MAX_TOKENS_PER_PASS
    """Tokens of a micro-batch (one forward and backward pass): bounds memory only."""
    dtype: str = "float32"
    """Type in which passes compute and the result is written: ``float32`` or ``bfloat16``. The trained weights and
    their gradients are float32 in both cases."""

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r}: choose float32 or bfloat16")
        for name in ("steps", "batch_size", "report_every", "keep_every", "max_tokens_per_pass"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as a torch type."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def whole_schedule(self) -> ScheduleSettings:
        """Returns the schedule, with a decay over all steps if ``decay_steps`` is unset."""
        schedule = self.schedule
        if schedule.shape == RateShape.CONSTANT or schedule.decay_steps is not None:
            return schedule
        # A run that is shorter than its warm-up does not reach the decay.
        return replace(schedule, decay_steps=max(self.steps, schedule.warmup_steps + 1))


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """A progress report."""

    step: int
    steps: int
    loss: float
    """Mean over the steps since the last report, in nats per imitated token."""
    held_out_loss: float
    """Loss on the held-out examples, in nats per imitated token."""
    seconds: float
    """Seconds since the start, or since it was resumed."""
    taken: int
    """Steps taken in this time."""

    @property
    def remaining_s(self) -> float:
        """Estimated seconds to the end, at the rate so far."""
        return self.seconds / self.taken * (self.steps - self.step)


KeepCheckpoint = Callable[[int, Optimizer], None]
"""Called with the number of steps taken and the optimiser, to store a checkpoint of both and the model."""


def fine_tune(
    model: PreTrainedModel,
    examples: Sequence[TuningExample],
    held_out: Sequence[TuningExample],
    config: SupervisedConfig,
    report: Callable[[TuningProgress], None],
    *,
    start: int = 0,
    optimizer_state: Mapping[str, Tensor] | None = None,
    keep: KeepCheckpoint | None = None,
) -> TuningProgress:
    """Train ``model``, a causal language model, in place; returns the last report.

    The order of examples depends on ``config.seed`` alone. ``keep`` is called every ``config.keep_every`` steps but the
    last; training that resumes from the model and the optimiser's tensors of that moment, after ``start`` steps, ends
    with the same weights, bit-identical on the same kind of processor. Raises ``ValueError`` without examples or with a
    ``start`` past the end, and ``FloatingPointError`` if the loss or the gradient is not finite. Dropout is off.
    """
    if not examples or not held_out:
        raise ValueError("fine_tune needs examples to train on and others to hold out")
    if not 0 <= start < config.steps:
        raise ValueError(f"{start} of {config.steps} steps are taken: no step is left to train")
    optimizer, schedule = Optimizer(model, config.optimizer), config.whole_schedule()
    optimizer.restore(optimizer_state or {})
    started = time.monotonic()
    total, since = 0.0, 0
    policy = WholePolicy(model, config.torch_dtype)
    # # No dropout, as in the trainer: its noise would not depend on the seed, and activations recomputed for the
    # backward pass would differ.
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
    """Returns nats per imitated token over ``examples``, computed in ``dtype``; the model's mode is unchanged."""
    training = model.training
    model.train(False)
    with attention.packed(model):
        policy = WholePolicy(model, dtype)
        total = sum(_summed_loss(policy, part).item() for part in _passes(examples, max_tokens_per_pass))
    model.train(training)
    return total / sum(example.imitated for example in examples)


def _batches(examples: Sequence[TuningExample], config: SupervisedConfig) -> Iterator[list[TuningExample]]:
    """Yield ``config.steps`` batches, each epoch in a new order.

    Windows of 16 batches are sorted by length and divided, so that the sequences of a batch have similar lengths, as
    attention's rectangles need; the batches of a window are shuffled again.
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
    """Returns ``batch`` in passes of at most ``max_tokens`` tokens."""
    lengths = [len(example.token_ids) for example in batch]
    return [[batch[index] for index in chosen] for chosen in plan_passes(lengths, max_tokens)]


def _summed_loss(policy: WholePolicy, batch: Sequence[TuningExample]) -> Tensor:
    """Returns Σ −log p over the imitated tokens of ``batch``, in nats."""
    packed = pack([(example.token_ids, [0, *example.mask[1:]]) for example in batch])
    return -policy.logprobs(packed).logprobs.sum()
