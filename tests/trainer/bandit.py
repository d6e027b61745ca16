"""A bandit with a known optimum, and the trainer's own learner on a policy of a few hundred numbers.

A prompt asks for a certain token at each of a few places; the reward is the share of places that have it, so the best
policy earns 1 and one that knows nothing 1 / VOCABULARY. The policy is a table of embeddings per place, times a head
that all places share, so that learning at one place affects the others, as in a model.

learn(BanditSettings(loss="dapo", baseline=Baseline.MEAN), steps=40).rewards[-1]     # near 1
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.schemas.records.group import Member
from headrace.streams.grouping.baselines import Baseline, RunningMean, constant, leave_one_out, mean
from headrace.trainer.batches.advantages import scale_advantages
from headrace.trainer.batches.batch import AdmittedGroup, Batch, ResolvedMember
from headrace.trainer.batches.packing import pack
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.losses.settings import CorrectionSettings, LossSettings
from tests.trainer.builders import AT, UNCHECKED

VOCABULARY, PLACES, HIDDEN = 12, 5, 16
LENGTHS = (2, 3, 4, 5)
"""Places that each prompt asks for."""


@dataclass(frozen=True, slots=True)
class BanditSettings:
    """One run."""

    loss: str = "dr_grpo"
    baseline: Baseline = Baseline.MEAN
    loss_settings: LossSettings = field(default_factory=LossSettings)
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    learning_rate: float = 0.05
    substeps: int = 2
    per_prompt: int = 16
    """Answers to a prompt in one batch; group members with a group's baseline, else groups of one."""
    lag: int = 0
    """Versions between the policy that samples and the one that is trained."""
    control: bool = False
    """Whether advantages are permuted over the batch."""
    seed: int = 0


@dataclass(slots=True)
class Learnt:
    """The result of a run."""

    rewards: list[float] = field(default_factory=list)
    """Expected reward of the policy, exact, before each step and after the last."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Metrics of the learner, by step."""


class Attempt(NamedTuple):
    """An answer to a prompt."""

    prompt: int
    tokens: np.ndarray
    reward: float


class Policy(torch.nn.Module):
    """π(token | prompt, place), with the interface of a causal model that the learner uses."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.places = torch.nn.Parameter(torch.randn(len(LENGTHS), PLACES + 1, HIDDEN, generator=generator) * 0.3)
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.3)

    @property
    def base_model(self) -> Callable[..., Any]:
        return self._hidden

    def _hidden(self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        starts_T = torch.arange(input_ids.shape[1]) - position_ids[0]
        return SimpleNamespace(last_hidden_state=self.places[input_ids[0, starts_T], position_ids[0]][None])

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head

    @torch.no_grad()
    def logprobs(self) -> np.ndarray:
        """(prompts, PLACES, VOCABULARY) log-probability of each token at each place."""
        return self.head(self.places[:, :PLACES]).log_softmax(-1).numpy()


class Bandit:
    """The prompts, and a policy that answers them."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.wanted = self._random.integers(0, VOCABULARY, (len(LENGTHS), PLACES))

    def expected_reward(self, logprobs: np.ndarray) -> float:
        """Mean over prompts of the exact expected reward of a policy."""
        chances = np.take_along_axis(np.exp(logprobs), self.wanted[..., None], -1)[..., 0]
        return float(np.mean([chances[prompt, :length].mean() for prompt, length in enumerate(LENGTHS)]))

    def sample(self, logprobs: np.ndarray, per_prompt: int) -> list[Attempt]:
        """``per_prompt`` answers to each prompt, prompt by prompt."""
        noise = self._random.gumbel(size=(per_prompt, *logprobs.shape))
        tokens = (logprobs + noise).argmax(-1)
        right = tokens == self.wanted
        return [
            Attempt(prompt, tokens[n, prompt, :length], float(right[n, prompt, :length].mean()))
            for prompt, length in enumerate(LENGTHS)
            for n in range(per_prompt)
        ]

    def shuffled(self, values: np.ndarray) -> np.ndarray:
        """``values`` in another order."""
        return self._random.permutation(values)


def learn(settings: BanditSettings, steps: int) -> Learnt:
    """Train a fresh policy for ``steps`` steps."""
    learner, policy, bandit = begin(settings)
    versions, learnt, running = [policy.logprobs()], Learnt(), dict[int, RunningMean]()
    for version in range(steps):
        learnt.rewards.append(bandit.expected_reward(versions[-1]))
        sampled_at = max(0, version - settings.lag)
        attempts = bandit.sample(versions[sampled_at], settings.per_prompt)
        groups = groups_of(settings, attempts, running)
        batch = batch_of(groups, attempts, versions[sampled_at], sampled_at)
        if settings.control:
            first_N = np.unique(batch.trajectories, return_index=True)[1]
            batch = replace(batch, advantages=bandit.shuffled(batch.advantages[first_N])[batch.trajectories])
        learnt.metrics.append(learner.step(batch, version))
        versions.append(policy.logprobs())
    learnt.rewards.append(bandit.expected_reward(versions[-1]))
    return learnt


def begin(settings: BanditSettings) -> tuple[Learner, Policy, Bandit]:
    """Returns a new policy, its learner and its bandit."""
    torch.set_num_threads(1)  # more threads are slower for so small a policy
    policy = Policy(settings.seed)
    return Learner(policy, config_of(settings).learner), policy, Bandit(settings.seed)  # type: ignore[arg-type]


def config_of(settings: BanditSettings) -> TrainerConfig:
    """The trainer's settings."""
    return TrainerConfig(
        "localhost:1", "bandit", Path(), Path(), "file:///nowhere",
        loss=settings.loss, loss_settings=settings.loss_settings, correction=settings.correction,
        optimizer=OptimizerSettings(learning_rate=settings.learning_rate), substeps=settings.substeps,
        constant_length=PLACES, plausibility=UNCHECKED,
    )  # fmt: skip


def groups_of(
    settings: BanditSettings, attempts: list[Attempt], running: dict[int, RunningMean]
) -> list[AdmittedGroup]:
    """The attempts in groups, by number, with advantages as the stream would give them."""
    groups = []
    for prompt in range(len(LENGTHS)):
        numbers = [number for number, attempt in enumerate(attempts) if attempt.prompt == prompt]
        rewards = [attempts[number].reward for number in numbers]
        match settings.baseline:
            case Baseline.MEAN:
                groups.append(group_of(numbers, rewards, mean(rewards)))
            case Baseline.LEAVE_ONE_OUT:
                groups.append(group_of(numbers, rewards, leave_one_out(rewards)))
            case Baseline.THRESHOLD:
                groups += [group_of([n], [r], constant([r], 0.5)) for n, r in zip(numbers, rewards, strict=True)]
            case Baseline.RUNNING:
                known = running.get(prompt, RunningMean(("bandit", "share@1", str(prompt))))
                for number, reward in zip(numbers, rewards, strict=True):
                    value = known.value(warmup=4)
                    if value is not None:
                        groups.append(group_of([number], [reward], constant([reward], value)))
                    known = known.after(reward, half_life=16)
                running[prompt] = known
    return scale_advantages(groups, config_of(settings).chosen_loss().advantage_scale)


def group_of(numbers: list[int], rewards: list[float], baselines: list[float]) -> AdmittedGroup:
    """Returns a group whose members are named by their number among the attempts."""
    members = tuple(
        ResolvedMember(
            Member(
                trajectory_id=str(number), trajectory=AT, reward=reward, advantage=reward - baseline, oldest_version=0,
                sampled_tokens=1,
            ),
            None,  # type: ignore[arg-type]
        )
        for number, reward, baseline in zip(numbers, rewards, baselines, strict=True)
    )  # fmt: skip
    return AdmittedGroup("g", AT, members, float(np.std(rewards, ddof=1)) if len(rewards) > 1 else None)


def batch_of(groups: list[AdmittedGroup], attempts: list[Attempt], logprobs: np.ndarray, version: int) -> Batch:
    """The batch of ``groups``, sampled by the policy of ``version``."""
    members = [resolved.member for group in groups for resolved in group.members]
    answers = [attempts[int(member.trajectory_id)] for member in members]
    lengths = [len(tokens) for _, tokens, _ in answers]
    return Batch(
        packed=pack([([prompt, *tokens], [0] + [1] * len(tokens)) for prompt, tokens, _ in answers]),
        behaviour_logprobs=np.concatenate(
            [logprobs[prompt, np.arange(len(tokens)), tokens] for prompt, tokens, _ in answers]
        ),
        advantages=np.repeat(np.asarray([member.advantage for member in members], np.float32), lengths),
        versions=np.full(sum(lengths), version, np.int64),
        trajectories=np.repeat(np.arange(len(lengths)), lengths),
        rewards=np.asarray([member.reward for member in members], np.float32),
    )
