"""Stale data: the clip around the policy that sampled stops learning; corrections hold.

python -m tests.experiments.stale_data
"""

from statistics import mean, stdev

from headrace.trainer.losses.settings import AdvantageScale, CorrectionSettings, LossSettings
from tests.experiments.page import COLOURS, new_figure, table, takes_no_options, write
from tests.trainer.bandit import BanditSettings, Learnt, learn

_CLIP = LossSettings(clip_high=0.2, advantage_scale=AdvantageScale.NONE)
"""With these settings, dapo and decoupled differ only in the policy that the ratio is measured against."""

ARMS = {
    "naive: dapo, clip around π_b": BanditSettings(loss="dapo", loss_settings=_CLIP),
    "decoupled": BanditSettings(loss="decoupled"),
    "dapo, truncated at C = 2": BanditSettings(
        loss="dapo", loss_settings=_CLIP, correction=CorrectionSettings(importance="truncate")
    ),
    "dapo, masked outside [0.5, 2]": BanditSettings(
        loss="dapo", loss_settings=_CLIP, correction=CorrectionSettings(importance="mask")
    ),
    "cispo, cap 5": BanditSettings(loss="cispo"),
}
NAIVE, DECOUPLED, TRUNCATED = list(ARMS)[:3]
LAGS = (0, 1, 2, 4, 8, 12)
SEEDS, STEPS, SHOWN = range(5), 60, 8


def run(arm: str, lag: int, seed: int, steps: int = STEPS) -> Learnt:
    """One run of an arm on data that is ``lag`` versions old."""
    chosen = ARMS[arm]
    return learn(BanditSettings(chosen.loss, loss_settings=chosen.loss_settings, correction=chosen.correction,
                                lag=lag, seed=seed), steps)  # fmt: skip


def speed(learnt: Learnt) -> float:
    """Mean expected reward over all steps: how soon the optimum, 1, is reached."""
    return mean(learnt.rewards)


def clipped(learnt: Learnt) -> float:
    """Share of tokens whose ratio was clipped, over all steps."""
    return mean(metrics["clip_fraction_low"] + metrics["clip_fraction_high"] for metrics in learnt.metrics)


def main() -> None:
    """Run everything, then write the page."""
    takes_no_options(__doc__)
    runs = {(arm, lag): [run(arm, lag, seed) for seed in SEEDS] for arm in ARMS for lag in LAGS}
    speeds = {key: [speed(learnt) for learnt in found] for key, found in runs.items()}

    figure = new_figure()
    curves, by_lag = figure.subplots(1, 2)
    for arm, colour in zip(ARMS, COLOURS, strict=True):
        steps = zip(*(learnt.rewards for learnt in runs[arm, SHOWN]), strict=True)
        curves.plot([mean(step) for step in steps], color=colour, label=arm)
        by_lag.errorbar(
            LAGS,
            [mean(speeds[arm, lag]) for lag in LAGS],
            [stdev(speeds[arm, lag]) for lag in LAGS],
            color=colour, marker="o", markersize=4, capsize=3, label=arm,
        )  # fmt: skip
    curves.set(title=f"data {SHOWN} versions old", xlabel="step", ylabel="expected reward (optimum 1)", ylim=(0, 1.02))
    by_lag.set(title="by age of the data", xlabel="versions between sampling and training", ylim=(0.4, 0.9))
    by_lag.set_ylabel(f"mean reward over {STEPS} steps")
    curves.legend(fontsize=8, loc="lower right")

    def cell(arm: str, lag: int) -> str:
        return f"{mean(speeds[arm, lag]):.2f} ± {stdev(speeds[arm, lag]):.2f}"

    rewards = table(["versions old", *map(str, LAGS)], [[arm, *(cell(arm, lag) for lag in LAGS)] for arm in ARMS])
    shares = table(
        ["versions old", *map(str, LAGS)],
        [
            [arm, *(f"{mean(map(clipped, runs[arm, lag])):.2f}" for lag in LAGS)]
            for arm in (NAIVE, DECOUPLED, TRUNCATED)
        ],
    )
    write(
        "stale_data",
        "Stale data: a clip around the sampling policy stops learning, corrections hold",
        [
            f"The bandit of `tests/trainer/bandit.py`, trained by the trainer's own learner on answers sampled some "
            f"versions ago: {STEPS} steps, two sub-steps each, seeds 0–{len(SEEDS) - 1}, mean ± deviation. The arms "
            "named dapo and decoupled have the same clip (0.2), normaliser and advantages, and differ in what the "
            "ratio is measured against: π_b is the policy that sampled a token, π_prox the policy before the step. C "
            "is the largest importance weight that truncation leaves.",
            f"Mean expected reward over all steps (how soon the optimum of 1 is reached):\n\n{rewards}",
            f"Share of tokens that the clip touched:\n\n{shares}",
            "Measured around π_b, the clip mistakes what earlier steps have learnt for a step that is too large, and "
            "removes the token's gradient; the older the data, the more tokens it removes. Measured around π_prox, it "
            "bounds only the current step. Truncation costs almost nothing here and bounds the variance. The mask "
            "discards the most off-policy tokens, which are also those that learning has changed most, so it loses "
            "data. On a bandit the naive loss is slow but still reaches the optimum with enough steps; an environment "
            "this small cannot show the collapse that is known from long answers.",
        ],
        figure,
    )


if __name__ == "__main__":
    main()
