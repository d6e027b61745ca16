"""Three trainers, each taking the same step on the same batch: loss, gradient, clip and AdamW, whole.

The loss is Dr. GRPO's: the clipped surrogate, divided by trajectories × a constant. Generation is left out everywhere.
Ours also with what is for GPUs only, one setting at a time.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.plausibility import PlausibilitySettings
from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.policy import load_policy
from headrace.trainer.parallel.settings import ParallelSettings
from tests.benchmarks.trainer.rollouts import Rollout, as_batch, as_padded
from tests.benchmarks.trainer.shapes import Shape
from tests.benchmarks.trainer.turns import Turns

CONSTANT_LENGTH = 64
LEARNING_RATE = 1e-6
CLIP = 0.2


def headrace(
    turns: Turns,
    shape: Shape,
    rollouts: Sequence[Rollout],
    model_dir: Path,
    max_tokens: int,
    *,
    layers: Mapping[str, Any] | None = None,
    shard_alone: bool = False,
) -> None:
    """Ours: packed. ``layers`` are layer settings that differ from the defaults."""
    config = our_config(shape, model_dir, max_tokens, layers=layers, shard_alone=shard_alone)
    learner = Learner(load_policy(config.model), config.learner)
    batch = as_batch(rollouts)

    def step() -> tuple[float, float]:
        metrics = learner.step(batch, 0)
        return metrics["loss"], metrics["grad_norm"]

    _serve(turns, step)


def our_config(
    shape: Shape,
    model_dir: Path,
    max_tokens: int,
    *,
    layers: Mapping[str, Any] | None = None,
    shard_alone: bool = False,
) -> TrainerConfig:
    """Our trainer's settings that affect a step."""
    return TrainerConfig(
        bootstrap="none",
        run="bench",
        model_dir=model_dir,
        checkpoint_dir=model_dir,
        store_url="file:///none",
        loss="dr_grpo",
        plausibility=PlausibilitySettings(too_low=None, too_high=None),  # log-probabilities are made up
        constant_length=CONSTANT_LENGTH,
        optimizer=OptimizerSettings(learning_rate=LEARNING_RATE),
        max_tokens_per_pass=max_tokens,
        device=shape.device,
        dtype=shape.dtype,
        layers=LayerSettings(**{"activation_checkpointing": shape.device != "cpu", **(layers or {})}),
        parallel=ParallelSettings(shard_alone=shard_alone),
    )


def padded(turns: Turns, shape: Shape, rollouts: Sequence[Rollout], model_dir: Path, micro_batch: int) -> None:
    """Plain torch and transformers: rectangles of sequences sorted by length, an attention mask, logits everywhere."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")
    model.to(shape.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    ordered = sorted(rollouts, key=lambda rollout: len(rollout.token_ids))
    parts = [
        {name: tensor.to(shape.device) for name, tensor in as_padded(ordered[start : start + micro_batch]).items()}
        for start in range(0, len(ordered), micro_batch)
    ]

    def step() -> tuple[float, float]:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in parts:
            ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
            inside = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
            positions = (inside.cumsum(1) - 1).clamp(min=0)
            kept = part["completion_ids"].shape[1]
            with torch.autocast(shape.device, torch.bfloat16, enabled=shape.dtype == "bfloat16"):
                logits = model(input_ids=ids, attention_mask=inside, position_ids=positions, use_cache=False).logits
            logprobs = logits[:, -kept - 1 : -1].float().log_softmax(-1)
            chosen = logprobs.gather(2, part["completion_ids"][..., None])[..., 0]
            ratio = (chosen - part["old_per_token_logps"]).exp()
            advantages = part["advantages"][:, None]
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            sampled = part["completion_mask"] * part["tool_mask"]
            loss = -(surrogate * sampled).sum() / (len(rollouts) * CONSTANT_LENGTH)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        return total, norm

    _serve(turns, step)


def trl(turns: Turns, shape: Shape, rollouts: Sequence[Rollout], model_dir: Path, micro_batch: int) -> None:
    """TRL's ``GRPOTrainer.train()`` unchanged, except that its generations are given to it."""
    sys.path.append(os.environ["TRL_FOLDER"])  # at the end: it brings a package named tests
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    recorded = as_padded(rollouts)

    class Recorded(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            return {name: tensor.to(shape.device) for name, tensor in recorded.items()}

    class OneStepATurn(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.stop()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
            turns.report(logs["loss"], logs["grad_norm"])

    accumulation = len(rollouts) // micro_batch
    arguments = GRPOConfig(
        output_dir=str(model_dir / "trl"),
        loss_type="dr_grpo",
        epsilon=CLIP,
        beta=0.0,
        num_generations=8,
        max_completion_length=CONSTANT_LENGTH,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        gradient_checkpointing=shape.device != "cpu",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=1_000_000,
        bf16=shape.dtype == "bfloat16",
        use_cpu=shape.device == "cpu",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Recorded(
        model=str(model_dir),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w1"] * len(rollouts)}),
        callbacks=[OneStepATurn()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


PEERS = ("headrace", "trl", "padded")
"""Contenders on a CPU."""

CONTENDERS: dict[str, Callable[[Turns, Shape, Sequence[Rollout], Path, int], None]] = {
    "headrace": headrace,
    "trl": trl,
    "padded": padded,
    "sharded": partial(headrace, shard_alone=True),
    "compiled": partial(headrace, layers={"compile": True}),
    "fa3": partial(headrace, layers={"flash_attention": "FA3"}),
    "liger": partial(headrace, layers={"liger": True}),
    "kept": partial(headrace, layers={"activation_checkpointing": False}),
}
TITLES = {
    "headrace": "headrace",
    "trl": "TRL 1.16 GRPOTrainer",
    "padded": "plain torch, padded, sorted by length",
    "sharded": "headrace, FSDP2 on one rank",
    "compiled": "headrace, compiled layers",
    "fa3": "headrace, FlashAttention 3",
    "liger": "headrace, Liger's kernels",
    "kept": "headrace, activations kept",
}


def _serve(turns: Turns, step: Callable[[], tuple[float, float]]) -> None:
    while True:
        turns.begin()
        loss, norm = step()
        turns.stop()
        turns.report(loss, norm)
