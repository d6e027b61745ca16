"""Groups whose rewards are all equal: dropping them changes only the gradient's divisor.

python -m tests.experiments.zero_variance
"""

from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch

from headrace.streams.grouping.baselines import Baseline
from headrace.trainer.batches.batch import AdmittedGroup, Batch
from headrace.trainer.batches.update import Update, pass_loss
from tests.experiments.page import COLOURS, new_figure, table, takes_no_options, write
from tests.trainer.bandit import LENGTHS, Bandit, BanditSettings, Policy, batch_of, begin, config_of, groups_of

LOSSES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "kimi", "decoupled")
SEEDS, STEPS = range(5), 60
PER_PROMPT = 8


@dataclass(frozen=True, slots=True)
class Compared:
    """One step's gradient with all groups and without those of equal rewards."""

    reward: float
    """Expected reward before the step."""
    equal: float
    """Share of groups whose rewards are all equal."""
    size: float
    """Divisor of the loss without them, over that with them."""
    ratio: float
    """Length of the gradient with them, over that without."""
    difference: float
    """Largest difference, over all parameters, between the gradient with them and that without × ``size``."""
    largest: float
    """Largest entry of the gradient with them."""


def compare(loss: str, seed: int, *, drop: bool, steps: int = STEPS, off_policy: bool = False) -> list[Compared]:
    """Train on all groups, or without the equal ones if ``drop``, and compare both gradients before each step.

    ``off_policy``: the gradients are those of the second of two sub-steps, whose ratios are not 1.
    """
    settings = BanditSettings(loss, seed=seed, per_prompt=PER_PROMPT, substeps=1)
    learner, policy, bandit = begin(settings)
    compared = []
    for version in range(steps):
        logprobs = policy.logprobs()
        attempts = bandit.sample(logprobs, PER_PROMPT)
        groups = groups_of(settings, attempts, {})
        kept = [group for group in groups if (group.reward_std or 0.0) > 1e-6]
        if not kept:
            compared.append(
                Compared(bandit.expected_reward(logprobs), equal=1, size=0, ratio=0, difference=0, largest=0)
            )
            if not drop:
                learner.step(batch_of(groups, attempts, logprobs, version), version)
            continue
        everything, left = (batch_of(chosen, attempts, logprobs, version) for chosen in (groups, kept))
        if off_policy:
            learner.step(left if drop else everything, version)
        compared.append(_compare(policy, settings, everything, left, bandit, groups, kept))
        if not off_policy:
            learner.step(left if drop else everything, version)
    return compared


def difference(run: list[Compared]) -> float:
    """Largest difference of a run, over the largest gradient of the run."""
    return max(step.difference for step in run) / max(step.largest for step in run)


def _compare(
    policy: Policy, settings: BanditSettings, everything: Batch, left: Batch, bandit: Bandit,
    groups: list[AdmittedGroup], kept: list[AdmittedGroup],
) -> Compared:  # fmt: skip
    (whole, divisor), (part, smaller) = (_gradient(policy, settings, batch) for batch in (everything, left))
    size = smaller / divisor
    return Compared(
        reward=bandit.expected_reward(policy.logprobs()),
        equal=1 - len(kept) / len(groups),
        size=size,
        ratio=float(np.linalg.norm(whole) / max(np.linalg.norm(part), 1e-30)),
        difference=float(np.abs(whole - part * size).max()),
        largest=float(np.abs(whole).max()),
    )


def _gradient(policy: Policy, settings: BanditSettings, batch: Batch) -> tuple[np.ndarray, float]:
    """The gradient of the loss by all parameters, and the divisor."""
    config = config_of(settings)
    loss = config.chosen_loss()
    update = Update(batch, batch.behaviour_logprobs, np.ones_like(batch.behaviour_logprobs))
    update = update.normalised(loss, config.constant_length)
    tokens = batch.packed.token_ids[batch.packed.targets]
    places = batch.packed.position_ids[batch.packed.targets] - 1
    prompts = batch.packed.token_ids[batch.packed.targets - places - 1]
    logprobs = policy.head(policy.places[prompts, places]).log_softmax(-1)
    chosen = logprobs.gather(1, torch.from_numpy(tokens)[:, None])[:, 0]
    value, _ = pass_loss(loss, update, chosen, torch.from_numpy(batch.advantages))
    gradients = torch.autograd.grad(value, list(policy.parameters()))
    return np.concatenate([gradient.numpy().ravel() for gradient in gradients]), update.divisor


def main() -> None:
    """Run everything, then write the page."""
    takes_no_options(__doc__)
    with_all = {loss: [compare(loss, seed, drop=False) for seed in SEEDS] for loss in LOSSES}
    dropped = {loss: [compare(loss, seed, drop=True) for seed in SEEDS] for loss in LOSSES}
    off_policy = {loss: [compare(loss, seed, drop=False, off_policy=True) for seed in SEEDS] for loss in LOSSES}

    def largest(runs: list[list[Compared]]) -> str:
        return f"{max(map(difference, runs)):.1e}"

    def arrived(runs: list[list[Compared]]) -> str:
        return f"{mean(mean(step.reward for step in run) for run in runs):.2f}"

    rows = [
        [loss, largest(with_all[loss]), largest(off_policy[loss]), arrived(with_all[loss]), arrived(dropped[loss])]
        for loss in LOSSES
    ]
    figure = new_figure()
    ratios, curves = figure.subplots(1, 2)
    steps = [step for run in with_all["dr_grpo"] for step in run if step.size]
    ratios.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="batch size ratio")
    ratios.scatter([s.size for s in steps], [s.ratio for s in steps], s=14, color=COLOURS[1], label="steps of dr_grpo")
    ratios.set(
        title="the gradient shrinks as the batch does", xlabel="trajectories kept / all",
        ylabel="gradient with all groups / without equal ones", xlim=(0, 1.02), ylim=(0, 1.02),
    )  # fmt: skip
    ratios.legend(fontsize=8)
    for runs, colour, name in ((with_all, COLOURS[0], "all groups"), (dropped, COLOURS[1], "equal ones dropped")):
        at = list(zip(*runs["dr_grpo"], strict=True))
        curves.plot([mean(each.reward for each in step) for step in at], color=colour, label=f"reward, {name}")
        if runs is with_all:
            curves.plot(
                [mean(each.equal for each in step) for step in at], color="#999999", linestyle=":",
                label="share of groups with equal rewards",
            )  # fmt: skip
    curves.set(title="dr_grpo, mean of five seeds", xlabel="step", ylim=(0, 1.02))
    curves.legend(fontsize=8)
    write(
        "zero_variance",
        "Groups of equal rewards: dropping them changes only the gradient's divisor",
        [
            f"The bandit of `tests/trainer/bandit.py`, {len(LENGTHS)} groups of {PER_PROMPT} per step, "
            f"{Baseline.MEAN}-baseline, {STEPS} steps, seeds "
            f"0–{len(SEEDS) - 1}. "
            "Before each step the gradient is computed with all groups and without those whose rewards are all equal; "
            "the latter is multiplied by the ratio of the two divisors (trajectories or tokens, depending on the "
            "loss's normaliser).",
            table(
                ["loss", "largest difference, ρ = 1", "the same, ρ ≠ 1", "mean reward, all", "mean reward, dropped"],
                rows,
            ),
            "Differences are relative to the largest entry of a run's gradients. Equal rewards have the advantage 0, "
            "and zero times a ratio is zero: the gradients agree to float32's last digits. AdamW is almost independent "
            "of a gradient's length and learns equally from either; what remains of the difference is its momentum, "
            "which continues when every group is equal, whereas there is no step without those groups. What changes is "
            "the divisor: with equal groups included, the gradient shrinks as the policy improves, and without Adam's "
            "scaling the learning rate would have to follow.",
            "**kimi is the exception** once the ratio has left 1: its squared penalty also holds tokens without an "
            "advantage in place, and dropping their groups removes that effect. The same is true of a KL penalty, with "
            "any loss.",
        ],
        figure,
    )


if __name__ == "__main__":
    main()
