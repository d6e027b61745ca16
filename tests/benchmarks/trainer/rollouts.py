"""A batch as plain values, and its form for each contender."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.schemas.events import TrajectoryStarted, VersionSpan
from headrace.schemas.records.group import Member
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.trainer.batches.batch import AdmittedGroup, Batch, ResolvedMember, make_batch

AT = Reference(partition=0, offset=0)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt, of one sequence."""

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    """Recorded log-probabilities of the sampled tokens."""
    advantage: float
    group: int


def as_batch(rollouts: Sequence[Rollout]) -> Batch:
    """For headrace."""
    groups: dict[int, list[ResolvedMember]] = {}
    for number, rollout in enumerate(rollouts):
        name, sampled = f"{rollout.group}/{number}", sum(rollout.loss_mask)
        segment = Segment(
            token_ids=rollout.token_ids,
            loss_mask=rollout.loss_mask,
            logprobs=rollout.logprobs,
            version_spans=[VersionSpan(version=0, start=0, end=sampled)],
        )
        trajectory = Trajectory(
            trajectory_id=name,
            started=TrajectoryStarted(task_id="t", agent="bench"),
            segments=[segment],
            first=AT,
            last=AT,
            started_ms=0,
            ended_ms=0,
        )
        member = Member(
            trajectory_id=name,
            trajectory=AT,
            reward=0.0,
            advantage=rollout.advantage,
            oldest_version=0,
            sampled_tokens=sampled,
        )
        groups.setdefault(rollout.group, []).append(ResolvedMember(member, trajectory))
    return make_batch([AdmittedGroup(str(number), AT, tuple(members)) for number, members in groups.items()])


def as_padded(rollouts: Sequence[Rollout]) -> dict[str, torch.Tensor]:
    """The form of TRL's trainer: prompts padded on the left (B, P), completions on the right (B, C)."""
    prompts = [rollout.loss_mask.index(1) for rollout in rollouts]
    left, right = max(prompts), max(len(r.token_ids) - prompt for r, prompt in zip(rollouts, prompts, strict=True))
    size = len(rollouts)
    padded = {
        "prompt_ids": torch.zeros(size, left, dtype=torch.long),
        "prompt_mask": torch.zeros(size, left, dtype=torch.long),
        "completion_ids": torch.zeros(size, right, dtype=torch.long),
        "completion_mask": torch.zeros(size, right, dtype=torch.long),
        "tool_mask": torch.ones(size, right, dtype=torch.long),
        "old_per_token_logps": torch.zeros(size, right),
    }
    for row, (rollout, prompt) in enumerate(zip(rollouts, prompts, strict=True)):
        rest = len(rollout.token_ids) - prompt
        sampled = torch.tensor(rollout.loss_mask[prompt:])
        padded["prompt_ids"][row, left - prompt :] = torch.tensor(rollout.token_ids[:prompt])
        padded["prompt_mask"][row, left - prompt :] = 1
        padded["completion_ids"][row, :rest] = torch.tensor(rollout.token_ids[prompt:])
        padded["completion_mask"][row, :rest] = 1
        padded["tool_mask"][row, :rest] = sampled
        padded["old_per_token_logps"][row, :rest][sampled.bool()] = torch.tensor(rollout.logprobs)
    padded["advantages"] = torch.tensor([rollout.advantage for rollout in rollouts])
    padded["num_items_in_batch"] = (padded["completion_mask"] * padded["tool_mask"]).sum()
    return padded
