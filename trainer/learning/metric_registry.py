"""Every metric of a step: name, unit, meaning and warning threshold. Declared here, once.

``Step.metrics``, Prometheus (``headrace_trainer_…``), the dashboard's trainer page, TensorBoard, W&B and METRICS.md
take their names and descriptions from this table. A metric that is computed and is not in it fails a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """Sections of metrics, each with a description, in the order of display."""

    about: str

    def __new__(cls, title: str, about: str) -> "Subject":
        """Returns a subject with this title and description."""
        subject = str.__new__(cls, title)
        subject._value_, subject.about = title, about
        return subject

    LEARNING = "Learning", "Whether the policy learns."
    OPTIMISER = "Optimiser", "Size of the updates."
    OFF_POLICY = (
        "Off-policy",
        "Distance of the policy from the behaviour policies: importance ratio ρ = π / π_behaviour of a token, with π "
        "the policy before the step's first update. Changes within the step are only in the sub-step metrics.",
    )
    CLIPPING = "Clipping and masking", "Which tokens the loss and its corrections clip or mask."
    STALENESS = "Staleness", "Age of the tokens, in policy versions."
    ROLLOUTS = (
        "Rollouts",
        "Everything that was sampled, trained or not, as reported by the groups that the step read: each group reports "
        "its run's rollouts since the group before it.",
    )
    BATCH = "Batch", "The data of the step."
    TIME = (
        "Time",
        "Throughput, and the time between one step's record and the next, by phase. A record is durable before its "
        "version is saved and published: the seconds of these two, for version n, are in the record of step n + 1.",
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a step."""

    name: str
    """As in ``Step.metrics``; a trailing ``*`` makes it a family: any name with that prefix."""
    unit: str
    """UCUM, as in OpenTelemetry: ``s``, ``{token}``, ``{share}`` for values between 0 and 1."""
    about: str
    """Description."""
    subject: Subject
    """Section."""
    warn_above: float | None = None
    """A value above it is a warning."""
    warn_below: float | None = None
    """A value below it is a warning."""

    def warns(self, value: float) -> bool:
        """Whether ``value`` is beyond a threshold; NaN is beyond any."""
        above, below = self.warn_above, self.warn_below
        return (above is not None and not value <= above) or (below is not None and not value >= below)

    @property
    def threshold(self) -> str:
        """The threshold in words, such as ``below 0.3``; empty if there is none."""
        bounds = (("above", self.warn_above), ("below", self.warn_below))
        return " or ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


_SHARE, _TOKENS, _NATS, _VERSIONS = "{share}", "{token}", "{nat}", "{version}"

_LEARNING = (
    Metric("reward_mean", "{reward}", "Mean reward of the batch's trajectories. Only trained ones count, so groups "
           "without variance are not included.", Subject.LEARNING),
    Metric("rollout_reward_mean", "{reward}", "Mean reward of all rollouts of the run, trained or not, whose fate was "
           "decided since the previous step; without evaluations and frozen roles.", Subject.LEARNING),
    Metric("loss", "1", "The minimised loss, mean over the step's updates.", Subject.LEARNING),
    Metric("advantage_abs_mean", "{reward}", "Mean absolute advantage, over tokens.", Subject.LEARNING),
    Metric("entropy", _NATS, "Mean entropy of the policy before the step over sampled tokens; near 0 it has stopped "
           "exploring.",
           Subject.LEARNING),
    Metric("kl_reference", _NATS, "KL(π ‖ π_ref) of the policy before the step, with a KL penalty: mean of "
           "ρ (log π − log π_ref), k1 over tokens of the behaviour policies.",
           Subject.LEARNING),
    Metric("hint_kl", _NATS, "With hint distillation: divergence of the policy without a turn's hint from the policy "
           "that reads it, in the direction that is reduced; mean over hinted tokens, each before its update. Not in "
           "`loss`.", Subject.LEARNING),
)  # fmt: skip
_OPTIMISER = (
    Metric("grad_norm", "1", "Largest gradient norm of the step's updates, before clipping.", Subject.OPTIMISER),
    Metric("learning_rate", "1", "Learning rate of the step, after the schedule.", Subject.OPTIMISER),
)
_OFF_POLICY = (
    Metric("importance_ratio_mean", "1", "Mean of ρ; 1 if on-policy.", Subject.OFF_POLICY),
    Metric("importance_ratio_max", "1", "Largest ρ of a token.", Subject.OFF_POLICY),
    Metric("effective_sample_size", _SHARE, "(Σρ)² / (N Σρ²): the effective share of the N tokens.",
           Subject.OFF_POLICY, warn_below=0.3),
    Metric("kl_k1", _NATS, "KL(π_behaviour ‖ π), estimated by the mean of −log ρ (k1).", Subject.OFF_POLICY),
    Metric("kl_k3", _NATS, "KL(π_behaviour ‖ π), estimated by the mean of ρ − 1 − log ρ (k3).", Subject.OFF_POLICY,
           warn_above=0.1),
    Metric("chi2", "1", "χ² divergence: mean of ρ², less 1.", Subject.OFF_POLICY, warn_above=1.0),
    Metric("mismatch_kl", _NATS, "k3 over tokens sampled by the version that is trained: the numerical difference "
           "between trainer and engine.", Subject.OFF_POLICY, warn_above=0.01),
    Metric("mismatch_logprob_max", _NATS, "Largest difference of a log-probability between trainer and engine, over "
           "the same tokens.", Subject.OFF_POLICY),
    Metric("substep_kl", _NATS, "With sub-steps: KL(π ‖ π_update), k3, where π_update is the policy before the update "
           "that trained the token.", Subject.OFF_POLICY),
    Metric("substep_ratio_max", "1", "With sub-steps: largest π_update / π of a token.", Subject.OFF_POLICY),
)  # fmt: skip
_CLIPPING = (
    Metric("clip_fraction_low", _SHARE, "Share of the kept tokens that the lower bound clips.", Subject.CLIPPING,
           warn_above=0.5),
    Metric("clip_fraction_high", _SHARE, "Share of the kept tokens that the upper bound clips.", Subject.CLIPPING,
           warn_above=0.5),
    Metric("tokens_kept", _TOKENS, "Tokens with a gradient, after masks.", Subject.CLIPPING),
    Metric("tokens_kept_share", _SHARE, "Share of all sampled tokens that is kept.", Subject.CLIPPING, warn_below=0.5),
    Metric("tokens_masked_stale", _TOKENS, "Tokens masked because of their age.", Subject.CLIPPING),
    Metric("tokens_masked_ratio", _TOKENS, "Tokens masked because of their importance ratio.", Subject.CLIPPING),
    Metric("correction_weight_mean", "1", "Mean weight of the importance correction, over kept tokens.",
           Subject.CLIPPING),
    Metric("correction_truncated", _SHARE, "Share of the kept tokens whose correction is truncated.", Subject.CLIPPING,
           warn_above=0.5),
)  # fmt: skip
_STALENESS = (
    Metric("staleness_p50", _VERSIONS, "Versions between sampling and training, median over tokens.",
           Subject.STALENESS),
    Metric("staleness_p95", _VERSIONS, "The same, 95th percentile.", Subject.STALENESS),
    Metric("staleness_max", _VERSIONS, "The same, of the oldest token.", Subject.STALENESS),
    Metric("staleness_zero", _SHARE, "Share of the tokens sampled by the version that is trained.", Subject.STALENESS),
    Metric("tokens_age_*", _TOKENS, "Tokens trained, by their age in versions.", Subject.STALENESS),
    Metric("admitted_age_*", "{trajectory}", "Trajectories trained, by the age of their oldest token.",
           Subject.STALENESS),
    Metric("rejected_age_*", "{trajectory}", "Trajectories rejected by the trainer, by the age of their oldest "
           "token.", Subject.STALENESS),
)  # fmt: skip
_ROLLOUTS = (
    Metric("rollouts", "{trajectory}", "Rollouts with a reward.", Subject.ROLLOUTS),
    Metric("rollout_groups", "{group}", "Groups formed of them, including those without variance in their rewards.",
           Subject.ROLLOUTS),
    Metric("zero_variance_share", _SHARE, "Share of these groups without variance, which are sampled but not trained.",
           Subject.ROLLOUTS),
    Metric("zero_variance_all_success", _SHARE, "Share of these groups in which every member has the largest possible "
           "reward; near 1 the tasks are too easy.", Subject.ROLLOUTS),
    Metric("zero_variance_all_fail", _SHARE, "Share of these groups in which no member has a reward above 0; near 1 "
           "the tasks are too hard.", Subject.ROLLOUTS),
    Metric("zero_variance_all_equal", _SHARE, "Share of these groups with other equal rewards.", Subject.ROLLOUTS),
)  # fmt: skip
_BATCH = (
    Metric("trajectories", "{trajectory}", "Trajectories trained.", Subject.BATCH),
    Metric("sequences", "{sequence}", "Packed sequences: one per segment of a trajectory.", Subject.BATCH),
    Metric("tokens_trained", _TOKENS, "Sampled tokens.", Subject.BATCH),
    Metric("tokens_read", _TOKENS, "Tokens of the batch, context included.", Subject.BATCH),
    Metric("hinted_turns", "{turn}", "With hint distillation: turns whose hint is distilled.", Subject.BATCH),
    Metric("hinted_tokens", _TOKENS, "With hint distillation: sampled tokens of these turns.", Subject.BATCH),
    Metric(
        "hints_refused_*",
        "{hint}",
        "With hint distillation: hints of the step's groups that were refused, by reason.",
        Subject.BATCH,
    ),
    Metric(
        "rejected",
        "{trajectory}",
        "Trajectories rejected by the trainer since the previous step, including those of skipped steps.",
        Subject.BATCH,
    ),
    Metric(
        "records_lost",
        "{record}",
        "Records of `training` that were deleted by retention before the trainer read them; the rollouts that they "
        "reported are not counted.",
        Subject.BATCH,
    ),
)
_TIME = (
    Metric("tokens_per_second", "{token/s}", "Tokens of the batch per second of training.", Subject.TIME),
    Metric("seconds_step", "s", "From the previous step's record to this one: the seconds below, the making of the "
           "batch, and attempts that were rolled back.", Subject.TIME),
    Metric("seconds_wait", "s", "Waiting for groups; a large share means that the trainer starves.", Subject.TIME),
    Metric("seconds_resolve", "s", "Reading trajectories and admitting groups.", Subject.TIME),
    Metric("seconds_train", "s", "Forward and backward passes and the optimiser.", Subject.TIME),
    Metric("seconds_save", "s", "Writing the checkpoint of the previous version.", Subject.TIME),
    Metric("seconds_publish", "s", "Uploading and announcing the previous version.", Subject.TIME),
)  # fmt: skip

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_LEARNING,
        *_OPTIMISER,
        *_OFF_POLICY,
        *_CLIPPING,
        *_STALENESS,
        *_ROLLOUTS,
        *_BATCH,
        *_TIME,
    )
}
"""Metrics by name, in the order of display."""


def metric_named(name: str) -> Metric | None:
    """Returns the metric called ``name``, or its family; ``None`` if it is not declared."""
    if name in METRICS:
        return METRICS[name]
    families = (metric for metric in METRICS.values() if metric.name.endswith("*"))
    return next((family for family in families if name.startswith(family.name.removesuffix("*"))), None)
