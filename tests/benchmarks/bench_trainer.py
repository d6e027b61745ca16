"""Trainer step on packed sequences, beside a plain padded Hugging Face forward and backward in the same run.

    OMP_NUM_THREADS=2 python tests/benchmarks/bench_trainer.py

The model is the size of the shipped base (0.35 M parameters), the batch 128 trajectories of 60-200 tokens. Compare the
ratio and not the seconds: machines differ, and so does what else they do.
"""

import statistics
import tempfile
import time
from array import array
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.events import TrajectoryStarted, VersionSpan
from headrace.schemas.records import Member, Reference, Segment, Trajectory
from headrace.trainer.batches.batch import AdmittedGroup, Batch, ResolvedMember, make_batch
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.model.load import load_model, save_model
from headrace.trainer.model.miniature import miniature_qwen3

VOCABULARY, GROUPS, GROUP_SIZE, THREADS, ROUNDS = 230, 16, 8, 2, 5
AT = Reference(partition=0, offset=0)


def main() -> None:
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        save_model(miniature_qwen3(VOCABULARY, end_id=1, pad_id=0, seed=0), Path(folder))
        config = TrainerConfig("none", "bench", Path(folder), Path(folder), "file:///none")
        learner = Learner(load_model(Path(folder)), config)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
        started = time.perf_counter()
        batch = random_batch(np.random.default_rng(0))
        print(f"make_batch: {time.perf_counter() - started:.3f} s (with making the trajectories up)")
        seconds: dict[str, list[float]] = {"packed step": [], "padded step": [], "canaries": []}
        for number in range(ROUNDS + 1):  # interleaved, so that both see the same neighbours; the first is not counted
            for name, work in (
                ("packed step", lambda: learner.step(batch, 0)),
                ("padded step", lambda: padded_step(plain, optimizer, batch)),
                ("canaries", lambda: learner.canaries(seed=0)),
            ):
                started = time.perf_counter()
                work()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    tokens = len(batch.packed.token_ids)
    print(f"{len(batch.packed.lengths)} sequences, {tokens} tokens, {len(batch.packed.targets)} of them sampled")
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        print(f"{name:12} {middle:.3f} s (min {min(taken):.3f})  {tokens / middle:,.0f} tokens/s")
    print(
        f"packed / padded: {statistics.median(seconds['padded step']) / statistics.median(seconds['packed step']):.2f}x"
    )


def random_batch(random: np.random.Generator) -> Batch:
    groups = []
    for number in range(GROUPS):
        members = []
        for attempt in range(GROUP_SIZE):
            length = int(random.integers(60, 201))
            mask = (random.random(length) < 0.3).astype(int)
            mask[0], mask[-1] = 0, 1
            sampled = int(mask.sum())
            segment = Segment(
                token_ids=array("i", random.integers(0, VOCABULARY, length).tolist()),
                loss_mask=array("b", mask.tolist()),
                logprobs=array("f", [-5.4] * sampled),
                version_spans=[VersionSpan(version=0, start=0, end=sampled)],
            )
            trajectory = Trajectory(
                trajectory_id=f"{number}/{attempt}",
                started=TrajectoryStarted(task_id="t", agent="search"),
                segments=[segment],
                first=AT,
                last=AT,
                started_ms=0,
                ended_ms=0,
            )
            member = Member(
                trajectory_id=trajectory.trajectory_id,
                trajectory=AT,
                reward=0.0,
                advantage=float(random.normal()),
                oldest_version=0,
                sampled_tokens=sampled,
            )
            members.append(ResolvedMember(member, trajectory))
        groups.append(AdmittedGroup(str(number), AT, tuple(members)))
    return make_batch(groups)


def padded_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """What a plain trainer does: a rectangle, an attention mask, logits everywhere."""
    lengths = torch.from_numpy(batch.packed.lengths)
    tokens = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)
    inside = torch.arange(tokens.shape[1])[None] < lengths[:, None]
    tokens[inside] = torch.from_numpy(batch.packed.token_ids)
    advantages = torch.zeros(len(batch.packed.token_ids))
    advantages[batch.packed.targets] = torch.from_numpy(batch.advantages)
    weights = torch.zeros(tokens.shape)
    weights[inside] = advantages
    optimizer.zero_grad(set_to_none=True)
    logits = model(input_ids=tokens, attention_mask=inside.long(), use_cache=False).logits[:, :-1].float()
    logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    (-(weights[:, 1:] * logprobs).sum() / (len(lengths) * 64)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


if __name__ == "__main__":
    main()
