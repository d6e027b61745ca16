"""Shapes of models and batches, and the divisions that each contender may try.

Every trajectory is one sequence: a prompt, then answers with observations between them, which are context. Lengths are
log-uniform, as agents' are: many short ones and a few long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.trainer.rollouts import Rollout

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of the table."""

    name: str
    """For the command line and the raw figures."""
    title: str
    """For the reader."""
    model: Mapping[str, int]
    """Fields of Qwen3's configuration."""
    groups: int
    """Groups of 8 in a batch."""
    prompt: Range
    """Tokens before the first answer."""
    turns: Range
    """Answers of a trajectory."""
    answer: Range
    """Sampled tokens of an answer."""
    observation: Range
    """Tokens between two answers."""
    passes: tuple[int, ...]
    """``max_tokens_per_pass`` to try: the fastest counts."""
    micro_batches: tuple[int, ...]
    """Sequences of a padded micro-batch to try: the fastest counts."""
    device: str = "cpu"
    """Torch device."""
    dtype: str = "float32"
    """dtype of the passes; the trained weights are float32."""

    @property
    def config(self) -> dict[str, int | bool]:
        """Qwen3's configuration; embedding and head share their weights, as in its small models."""
        return {"tie_word_embeddings": True, "max_position_embeddings": 40960, **self.model}

    def rollouts(self, seed: int = 0) -> list[Rollout]:
        """The batch, deterministic by seed. Recorded log-probabilities are close to those of a random model."""
        random = np.random.default_rng(seed)
        made = []
        for number in range(self.groups * 8):
            mask = [0] * _draw(random, self.prompt)
            for turn in range(_draw(random, self.turns)):
                mask += [0] * (_draw(random, self.observation) if turn else 0) + [1] * _draw(random, self.answer)
            made.append(
                Rollout(
                    token_ids=random.integers(0, self.model["vocab_size"], len(mask)).tolist(),
                    loss_mask=mask,
                    logprobs=(random.normal(0, 0.05, sum(mask)) - np.log(self.model["vocab_size"])).tolist(),
                    advantage=float(random.normal()),
                    group=number // 8,
                )
            )
        return made


def _draw(random: np.random.Generator, bounds: Range) -> int:
    return round(float(np.exp(random.uniform(*np.log(bounds)))))


def qwen3(
    vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, width: int, inner: int
) -> dict[str, int]:
    """Fields of the configuration."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "intermediate_size": inner,
    }


MINIATURE = qwen3(230, 96, 3, 3, 1, 32, 288)
SMALL = qwen3(32_000, 384, 6, 6, 2, 64, 1152)

CPU = (
    Shape("miniature", "0.35 M, the shipped base; search agents of 2-5 turns", MINIATURE, groups=16,
          prompt=(30, 60), turns=(2, 5), answer=(5, 20), observation=(10, 40),
          passes=(2048, 8192), micro_batches=(8, 32, 128)),
    Shape("answers", "23 M; single answers of 16-256 tokens", SMALL, groups=2,
          prompt=(32, 64), turns=(1, 1), answer=(16, 256), observation=(1, 1),
          passes=(1024, 8192), micro_batches=(2, 8)),
    Shape("long", "2.5 M; agents of 3-12 turns, up to a few thousand tokens", qwen3(4096, 192, 6, 6, 2, 32, 512),
          groups=1, prompt=(64, 128), turns=(3, 12), answer=(10, 60), observation=(20, 400),
          passes=(4096, 16384), micro_batches=(1, 4)),
    Shape("vocabulary", "21 M under a vocabulary of 152 k; agents of 2-4 turns", qwen3(151_936, 128, 4, 4, 2, 32, 384),
          groups=2, prompt=(32, 64), turns=(2, 4), answer=(5, 20), observation=(10, 60),
          passes=(8192,), micro_batches=(4, 16)),
)  # fmt: skip
"""On two cores of a CPU."""

_AGENTS: dict[str, Range] = {"prompt": (500, 2000), "turns": (3, 20), "answer": (50, 600), "observation": (100, 1500)}
_GPU = {"device": "cuda", "dtype": "bfloat16", "passes": (32_768,)}

GPU = (
    Shape("0.6b", "Qwen3 0.6 B, packs of 32 k tokens", qwen3(151_936, 1024, 28, 16, 8, 128, 3072), groups=8,
          micro_batches=(1, 4), **_AGENTS, **_GPU),
    Shape("4b", "Qwen3 4 B, packs of 32 k tokens", qwen3(151_936, 2560, 36, 32, 8, 128, 9728), groups=4,
          micro_batches=(1, 2), **_AGENTS, **_GPU),
    Shape("8b", "Qwen3 8 B, packs of 32 k tokens", qwen3(151_936, 4096, 36, 32, 8, 128, 12288), groups=4,
          micro_batches=(1,), **_AGENTS, **_GPU),
)  # fmt: skip
"""On one GPU. Unverified, for lack of a GPU. Weights, gradients and moments take 16 bytes per weight, so 8 B parameters
and their activations do not fit on one GPU of 141 GB or less."""

TINY = Shape("tiny", "a test's", qwen3(50, 32, 1, 2, 1, 16, 48), groups=1, prompt=(4, 8), turns=(1, 2), answer=(3, 6),
             observation=(2, 4), passes=(512,), micro_batches=(4,))  # fmt: skip
"""A shape for smoke tests."""

SHAPES = {shape.name: shape for shape in (*CPU, *GPU, TINY)}
"""By name."""


def flops(shape: Shape, lengths: list[int], sampled: int) -> float:
    """Model FLOPs of a step: 6 per weight and token, for the head per sampled token; causal attention; no recompute."""
    model = shape.model
    attention = model["num_attention_heads"] * model["head_dim"]
    keys = model["num_key_value_heads"] * model["head_dim"]
    layer = model["hidden_size"] * (2 * attention + 2 * keys + 3 * model["intermediate_size"])
    weights = 6.0 * model["num_hidden_layers"] * layer * sum(lengths)
    pairs = 6.0 * model["num_hidden_layers"] * attention * sum(length * length for length in lengths)
    return weights + pairs + 6.0 * model["vocab_size"] * model["hidden_size"] * sampled
