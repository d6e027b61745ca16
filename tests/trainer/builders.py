"""Builders of small trajectories, groups and models; every argument is optional."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.schemas.events import SamplingSpan, TrajectoryStarted, VersionSpan
from headrace.schemas.records.group import Member, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.trainer.batches.batch import AdmittedGroup, Batch, ResolvedMember, make_batch
from headrace.trainer.batches.turn_hints import REFUSALS, TurnHints
from headrace.trainer.learning.plausibility import PlausibilitySettings

AT = Reference(partition=0, offset=0)
UNCHECKED = PlausibilitySettings(too_low=None, too_high=None)
"""Source of invented log-probabilities."""


def segment(
    text: str,
    *,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    temperatures: Sequence[float] | None = None,
    vocabulary: int = 50,
    runs: Sequence[str | None] | None = None,
) -> Segment:
    """``segment("ccSSc")``: c context and S sampled tokens. Token ids follow from the position."""
    mask = [int(letter == "S") for letter in text]
    sampled = sum(mask)
    at = list(versions) if versions is not None else [0] * sampled
    return Segment(
        token_ids=array("i", [(7 * index + len(text)) % vocabulary for index in range(len(text))]),
        loss_mask=mask,
        logprobs=[-1.0] * sampled if logprobs is None else logprobs,
        version_spans=[
            VersionSpan(version=version, start=i, end=i + 1, run=run)
            for i, (version, run) in enumerate(zip(at, runs or [None] * sampled, strict=True))
        ],
        sampling_spans=[
            SamplingSpan(temperature=each, start=i, end=i + 1) for i, each in enumerate(temperatures or [1.0] * sampled)
        ],
    )


def trajectory(name: str, *segments: Segment, run: str = "run") -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        started=TrajectoryStarted(task_id="task", agent="search", run=run),
        segments=list(segments),
        sampled_tokens=sum(sum(each.loss_mask) for each in segments),
        first=AT,
        last=AT,
        started_ms=0,
        ended_ms=0,
    )


def member(of: Trajectory, *, advantage: float = 0.5, reward: float = 1.0, at: Reference = AT) -> Member:
    return Member(
        trajectory_id=of.trajectory_id,
        trajectory=at,
        reward=reward,
        advantage=advantage,
        oldest_version=min(of.versions, default=0),
        sampled_tokens=max(of.sampled_tokens, 1),
    )


def training_group(name: str, members: Sequence[Member], *, run: str = "run") -> TrainingGroup:
    return TrainingGroup(
        group_id=name,
        run=run,
        task_id="task",
        spec="search@1",
        baseline="mean",
        baseline_value=0.5,
        scored=max(len(members), 1),
        members=list(members),
        oldest_version=min((each.oldest_version for each in members), default=0),
    )


def admitted(name: str, *trajectories: Trajectory, advantages: Sequence[float] | None = None) -> AdmittedGroup:
    given = advantages or [0.5] * len(trajectories)
    members = [ResolvedMember(member(each, advantage=a), each) for each, a in zip(trajectories, given, strict=True)]
    return AdmittedGroup(name, AT, tuple(members))


def off_policy_batch(*, seed: int = 0) -> Batch:
    """Returns trajectories of one to three segments, sampled by policies 0 to 3 versions old; version 3 is trained."""
    random = np.random.default_rng(seed)
    trajectories = []
    for number in range(8):
        parts = ["c" * int(random.integers(1, 6)) + "S" * int(random.integers(1, 6)) for _ in range(1 + number % 3)]
        trajectories.append(
            trajectory(
                f"t{number}",
                *(
                    segment(
                        text,
                        vocabulary=41,
                        logprobs=random.normal(-6, 2, text.count("S")).clip(max=0).tolist(),
                        versions=random.integers(0, 4, text.count("S")).tolist(),
                    )
                    for text in parts
                ),
            )
        )
    return make_batch([admitted("g", *trajectories, advantages=random.normal(0, 1, 8).tolist())])


def with_hints(batch: Batch, *, every: int = 2) -> Batch:
    """``batch`` with a hint of two tokens for the first turn of every ``every``-th sequence: its first sampled run."""
    packed, places = batch.packed, []
    for sequence in range(0, len(packed.lengths), every):
        first, end = np.searchsorted(packed.targets, packed.cu_seqlens[sequence : sequence + 2])
        breaks = np.flatnonzero(np.diff(packed.targets[first:end]) != 1)
        places.append((first, first + 1 + breaks[0] if len(breaks) else end))
    count = len(places)
    hints = TurnHints(
        token_ids=np.arange(2 * count, dtype=np.int64) % 41,
        cu_hints=np.arange(0, 2 * count + 1, 2, dtype=np.int64),
        firsts=np.asarray([first for first, _ in places], np.int64),
        lasts=np.asarray([last for _, last in places], np.int64),
        gaps=np.zeros(count, np.int64),
        refused=np.zeros(len(REFUSALS), np.int64),
    )
    return replace(batch, hints=hints)


def tiny_model(path: Path, *, seed: int = 0, vocabulary: int = 50, tied: bool = True) -> Path:
    """A random Qwen3 directory: 2 layers, 16 k parameters; the same for a seed."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.set_num_threads(1)  # more threads are slower for so small a model
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # transformers draws with a deviation of 0.02: nearly uniform outputs would hide mistakes
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    model.save_pretrained(path)
    return path


def random_sequences(count: int, *, vocabulary: int = 50, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        length = int(random.integers(2, 40))
        mask = random.random(length) < 0.5
        mask[0], mask[-1] = False, True
        sequences.append((random.integers(0, vocabulary, length), mask))
    return sequences
