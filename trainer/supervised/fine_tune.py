"""Supervised fine-tuning on token sequences with masks: how a base model learns to speak before it is reinforced.

Generic: an example is token ids and which of them to imitate. Nothing here knows where examples come from.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.trainer.learning.optimizers import Optimizer, OptimizerSettings
from headrace.trainer.learning.schedules import ScheduleSettings, Shape, rate_share


@dataclass(frozen=True, slots=True)
class Example:
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


@dataclass(frozen=True, slots=True)
class SupervisedConfig:
    """How to fine-tune."""

    steps: int = 2000
    batch_size: int = 64
    """Sequences a step."""
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(learning_rate=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    )
    """What moves the weights."""
    schedule: ScheduleSettings = field(
        default_factory=lambda: ScheduleSettings(shape=Shape.COSINE, warmup_steps=100, final_share=0.1)
    )
    """The learning rate over the steps; without ``decay_steps`` it comes down over all of them."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    seed: int = 0
    report_every: int = 50
    """Steps between two reports, each with the loss on all held-out examples."""

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size, self.report_every) < 1:
            raise ValueError("steps, batch_size and report_every must be at least 1")

    def whole_schedule(self) -> ScheduleSettings:
        """The schedule, over all steps where it does not say over how many."""
        schedule = self.schedule
        if schedule.shape == Shape.CONSTANT or schedule.decay_steps is not None:
            return schedule
        # A run that is shorter than its warm-up never gets to the decay.
        return replace(schedule, decay_steps=max(self.steps, schedule.warmup_steps + 1))


@dataclass(frozen=True, slots=True)
class Progress:
    """A report on the way."""

    step: int
    steps: int
    loss: float
    """Mean over the steps since the last report, nats per imitated token."""
    held_out_loss: float
    """Nats per imitated token of examples that are never trained on."""
    seconds: float
    """Since the start."""

    @property
    def remaining_s(self) -> float:
        """Estimated seconds to the end, at the pace so far."""
        return self.seconds / self.step * (self.steps - self.step)


def fine_tune(
    model: PreTrainedModel,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    config: SupervisedConfig,
    report: Callable[[Progress], None],
) -> Progress:
    """Train ``model``, a causal language model, in place; returns the last report.

    The order of examples follows from ``config.seed`` alone. Raises ``ValueError`` without examples, and
    ``FloatingPointError`` when the loss is no longer finite.
    """
    if not examples or not held_out:
        raise ValueError("fine_tune needs examples to train on and others to hold out")
    optimizer, schedule = Optimizer(model, config.optimizer), config.whole_schedule()
    model.train()
    started = time.monotonic()
    total, since = 0.0, 0
    for step, batch in enumerate(_batches(examples, config), start=1):
        loss = _summed_loss(model, batch) / sum(sum(example.mask[1:]) for example in batch)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss is {loss.item()} at step {step}: lower learning_rate")
        optimizer.set_rate(rate_share(schedule, step - 1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.clip(config.max_grad_norm)
        optimizer.step()
        total, since = total + loss.item(), since + 1
        if step % config.report_every == 0 or step == config.steps:
            loss_there = held_out_loss(model, held_out, config.batch_size)
            progress = Progress(step, config.steps, total / since, loss_there, time.monotonic() - started)
            report(progress)
            total, since = 0.0, 0
    return progress


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, examples: Sequence[Example], batch_size: int = 64) -> float:
    """Nats per imitated token over ``examples``; the model's mode is left as it was."""
    training = model.training
    model.train(False)
    total = sum(
        _summed_loss(model, examples[start : start + batch_size]).item()
        for start in range(0, len(examples), batch_size)
    )
    model.train(training)
    return total / sum(sum(example.mask[1:]) for example in examples)


def _batches(examples: Sequence[Example], config: SupervisedConfig) -> Iterator[list[Example]]:
    """``config.steps`` batches, epoch after epoch in a fresh order.

    Runs of batches are sorted by length and cut: sequences of a batch are about as long as one another, so little of
    the work is spent on padding, and the batches of a run are shuffled again.
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


def _summed_loss(model: PreTrainedModel, batch: Sequence[Example]) -> Tensor:
    """Σ −log p over the imitated tokens of ``batch``, in nats.

    Sequences are padded on the right, where a causal model never looks back from, so no attention mask is needed.
    Only positions that predict an imitated token go through the LM head.
    """
    longest = max(len(example.token_ids) for example in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    imitated = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, example in enumerate(batch):
        tokens[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        imitated[row, : len(example.mask)] = torch.tensor(example.mask, dtype=torch.bool)
    hidden = model.base_model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    predicted = imitated[:, 1:]
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits = head(hidden[predicted]).float()
    return nn.functional.cross_entropy(logits, tokens[:, 1:][predicted], reduction="sum")
