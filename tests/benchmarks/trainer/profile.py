"""Time profile of our step by torch's profiler: ``… .profile SHAPE MODEL_DIR DIVISION`` prints shares as JSON.

An operator's own time counts for the first purpose that it, or what called it, has.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from headrace.trainer.learning.learner import Learner
from headrace.trainer.model.policy import load_policy
from tests.benchmarks.trainer.contenders import our_config
from tests.benchmarks.trainer.rollouts import as_batch
from tests.benchmarks.trainer.shapes import SHAPES

PURPOSES = {
    "the head's log-probabilities": ("_HeadLogprobs",),
    "optimiser, norm and clip": ("Optimizer.", "_fused_adamw", "_foreach", "linalg_vector_norm"),
    "attention": ("scaled_dot_product", "varlen_attn", "_flash_attention"),
    "gathering rows for attention": (
        "aten::index_select",
        "aten::index_add",
        "aten::cat",
        "IndexSelect",
        "CatBackward",
    ),
    "embedding": ("aten::embedding", "EmbeddingBackward"),
    "matrices of the layers": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear"),
}
"""Purpose of an operator, by the first matching part of its name."""

REST = "element-wise: norms, rotation, activation, sums of gradients"


def shares(shape: str, model_dir: Path, max_tokens: int) -> dict[str, float]:
    """Share of each purpose in the time of one step, the largest first."""
    on = SHAPES[shape]
    config = our_config(on, model_dir, max_tokens)
    learner = Learner(load_policy(config.model), config.learner)
    batch = as_batch(on.rollouts())
    for _ in range(2):
        learner.step(batch, 0)
    cuda = on.device != "cpu"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
        learner.step(batch, 0)
    spent = Counter[str]()
    for event in found.events() or []:
        spent[_purpose(event)] += event.self_device_time_total if cuda else event.self_cpu_time_total
    total = sum(spent.values())
    return {purpose: time / total for purpose, time in spent.most_common()}


def _purpose(event: Any) -> str:
    while event is not None:
        for purpose, names in PURPOSES.items():
            if any(name in event.name for name in names):
                return purpose
        event = event.cpu_parent
    return REST


def main() -> None:
    """Print the shares."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    shape, model_dir, division = sys.argv[1:]
    print(json.dumps(shares(shape, Path(model_dir), int(division))))


if __name__ == "__main__":
    main()
