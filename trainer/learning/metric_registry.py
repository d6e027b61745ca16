"""Every metric of a step: name, unit, meaning, and from where on it is a warning. Declared here, once.

``Step.metrics``, Prometheus (``headrace_trainer_…``), the dashboard's trainer page, TensorBoard, W&B and METRICS.md all
take their names and sentences from this table. A metric that is not in it fails a test: add a line, nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """What a metric is about, with a sentence; in the order in which people look."""

    about: str

    def __new__(cls, title: str, about: str) -> "Subject":
        """A subject called ``title``."""
        subject = str.__new__(cls, title)
        subject._value_, subject.about = title, about
        return subject

    LEARNING = "Learning", "Whether it learns."
    OPTIMISER = "Optimiser", "How it moves."
    OFF_POLICY = (
        "Off-policy",
        "How far the policy is from those that sampled: ρ = π / π_behaviour of a token, π the policy before the step's "
        "first update. What the optimiser does within the step is in the metrics of sub-steps alone.",
    )
    CLIPPING = "Clipping and masking", "Which tokens the loss and its corrections hold back."
    STALENESS = "Staleness", "How old the tokens are, in policy versions."
    ROLLOUTS = (
        "Rollouts",
        "What was sampled, trained or not, as the groups that the step read tell it: each says what became of its run "
        "since the group before it.",
    )
    BATCH = "Batch", "What it was trained on."
    TIME = (
        "Time",
        "How fast it is, and where the seconds go from one step's record to the next. A record is durable before its "
        "version is saved and published: the seconds of these two, for version n, stand in the record of step n + 1.",
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a step."""

    name: str
    """As in ``Step.metrics``; with ``*`` at its end, a family: any name with that beginning."""
    unit: str
    """UCUM, as OpenTelemetry has it: ``s``, ``{token}``, ``{share}`` for what lies between 0 and 1."""
    about: str
    """What it says."""
    subject: Subject
    """What it is about."""
    warn_above: float | None = None
    """A value above it is a warning."""
    warn_below: float | None = None
    """A value below it is a warning."""

    def warns(self, value: float) -> bool:
        """Whether ``value`` is beyond a threshold; what is not a number is, where there is one."""
        above, below = self.warn_above, self.warn_below
        return (above is not None and not value <= above) or (below is not None and not value >= below)

    @property
    def threshold(self) -> str:
        """The threshold in words, empty where there is none: ``below 0.3``."""
        bounds = (("above", self.warn_above), ("below", self.warn_below))
        return " or ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


_SHARE, _TOKENS, _NATS, _VERSIONS = "{share}", "{token}", "{nat}", "{version}"

_LEARNING = (
    Metric("reward_mean", "{reward}", "Mean reward of the batch's trajectories: of those that are trained, so groups "
           "without variance are not in it.", Subject.LEARNING),
    Metric("rollout_reward_mean", "{reward}", "Mean reward of all rollouts of the run, trained or not, that had their "
           "fate by groups since the step before; without evaluations and frozen roles.", Subject.LEARNING),
    Metric("loss", "1", "The loss that was minimised, mean over the step's updates.", Subject.LEARNING),
    Metric("advantage_abs_mean", "{reward}", "Mean size of the tokens' advantages.", Subject.LEARNING),
    Metric("entropy", _NATS, "Mean entropy of the policy before the step over sampled tokens: near 0, it has stopped "
           "exploring.",
           Subject.LEARNING),
    Metric("kl_reference", _NATS, "KL(π ‖ π_ref) of the policy before the step, with a KL penalty: mean of "
           "ρ (log π − log π_ref), k1 over tokens that others sampled.",
           Subject.LEARNING),
)  # fmt: skip
_OPTIMISER = (
    Metric("grad_norm", "1", "Largest gradient norm of the step's updates, before clipping.", Subject.OPTIMISER),
    Metric("learning_rate", "1", "What the schedule made of the optimiser's learning rate.", Subject.OPTIMISER),
)
_OFF_POLICY = (
    Metric("importance_ratio_mean", "1", "Mean of ρ: 1 on-policy.", Subject.OFF_POLICY),
    Metric("importance_ratio_max", "1", "Largest ρ of a token.", Subject.OFF_POLICY),
    Metric("effective_sample_size", _SHARE, "(Σρ)² / (N Σρ²): the share of the N tokens that still counts.",
           Subject.OFF_POLICY, warn_below=0.3),
    Metric("kl_k1", _NATS, "KL(π_behaviour ‖ π), estimated by the mean of −log ρ (k1).", Subject.OFF_POLICY),
    Metric("kl_k3", _NATS, "KL(π_behaviour ‖ π), estimated by the mean of ρ − 1 − log ρ (k3).", Subject.OFF_POLICY,
           warn_above=0.1),
    Metric("chi2", "1", "χ² divergence: mean of ρ², less 1.", Subject.OFF_POLICY, warn_above=1.0),
    Metric("mismatch_kl", _NATS, "k3 over tokens that this very version sampled: what trainer and engine compute "
           "differently.", Subject.OFF_POLICY, warn_above=0.01),
    Metric("mismatch_logprob_max", _NATS, "Largest difference of a log-probability between trainer and engine, over "
           "the same tokens.", Subject.OFF_POLICY),
    Metric("substep_kl", _NATS, "With sub-steps: KL(π ‖ π_update), k3, of π_update, the policy before the update that "
           "trained the token.", Subject.OFF_POLICY),
    Metric("substep_ratio_max", "1", "With sub-steps: largest π_update / π of a token.", Subject.OFF_POLICY),
)  # fmt: skip
_CLIPPING = (
    Metric("clip_fraction_low", _SHARE, "Tokens held back by the lower clip, of those kept.", Subject.CLIPPING,
           warn_above=0.5),
    Metric("clip_fraction_high", _SHARE, "Tokens held back by the upper clip, of those kept.", Subject.CLIPPING,
           warn_above=0.5),
    Metric("tokens_kept", _TOKENS, "Tokens with a gradient, after masks.", Subject.CLIPPING),
    Metric("tokens_kept_share", _SHARE, "Those, of all sampled tokens.", Subject.CLIPPING, warn_below=0.5),
    Metric("tokens_masked_stale", _TOKENS, "Tokens masked for their age.", Subject.CLIPPING),
    Metric("tokens_masked_ratio", _TOKENS, "Tokens masked for their ratio.", Subject.CLIPPING),
    Metric("correction_weight_mean", "1", "Mean weight of the importance correction, over tokens kept.",
           Subject.CLIPPING),
    Metric("correction_truncated", _SHARE, "Tokens whose correction was truncated, of those kept.", Subject.CLIPPING,
           warn_above=0.5),
)  # fmt: skip
_STALENESS = (
    Metric("staleness_p50", _VERSIONS, "Versions between sampling and training, median over tokens.",
           Subject.STALENESS),
    Metric("staleness_p95", _VERSIONS, "The same, 95th percentile.", Subject.STALENESS),
    Metric("staleness_max", _VERSIONS, "The same, of the oldest token.", Subject.STALENESS),
    Metric("staleness_zero", _SHARE, "Tokens that the very policy sampled that was trained.", Subject.STALENESS),
    Metric("tokens_age_*", _TOKENS, "Tokens trained, by their age in versions.", Subject.STALENESS),
    Metric("admitted_age_*", "{trajectory}", "Trajectories trained, by the age of their oldest token.",
           Subject.STALENESS),
    Metric("rejected_age_*", "{trajectory}", "Trajectories turned away by the trainer, by the age of their oldest "
           "token.", Subject.STALENESS),
)  # fmt: skip
_ROLLOUTS = (
    Metric("rollouts", "{trajectory}", "Rollouts with a reward.", Subject.ROLLOUTS),
    Metric("rollout_groups", "{group}", "Groups that were formed of them, or had no variance in their rewards.",
           Subject.ROLLOUTS),
    Metric("zero_variance_share", _SHARE, "Groups without variance, of these: they are sampled and not trained.",
           Subject.ROLLOUTS),
    Metric("zero_variance_all_success", _SHARE, "Groups in which every member has the largest possible reward, of "
           "these: near 1, the prompts are too easy.", Subject.ROLLOUTS),
    Metric("zero_variance_all_fail", _SHARE, "Groups in which no member has a reward above 0, of these: near 1, they "
           "are too hard.", Subject.ROLLOUTS),
    Metric("zero_variance_all_equal", _SHARE, "Groups whose rewards are equal otherwise, of these.", Subject.ROLLOUTS),
)  # fmt: skip
_BATCH = (
    Metric("trajectories", "{trajectory}", "Trajectories trained.", Subject.BATCH),
    Metric("sequences", "{sequence}", "Sequences packed: one a segment of a trajectory.", Subject.BATCH),
    Metric("tokens_trained", _TOKENS, "Sampled tokens.", Subject.BATCH),
    Metric("tokens_read", _TOKENS, "Tokens of the batch, context included.", Subject.BATCH),
    Metric(
        "rejected",
        "{trajectory}",
        "Trajectories turned away by the trainer since the step before, those of skipped steps included.",
        Subject.BATCH,
    ),
    Metric(
        "records_lost",
        "{record}",
        "Records of `training` that retention took before the trainer read them; the rollouts that they told of are "
        "not counted.",
        Subject.BATCH,
    ),
)
_TIME = (
    Metric("tokens_per_second", "{token/s}", "Tokens read a second of training.", Subject.TIME),
    Metric("seconds_step", "s", "From the record of the step before to this one: the seconds below, what goes into "
           "making the batch, and attempts that were taken back.", Subject.TIME),
    Metric("seconds_wait", "s", "Waiting for groups: much of it, and the trainer starves.", Subject.TIME),
    Metric("seconds_resolve", "s", "Reading trajectories and admitting groups.", Subject.TIME),
    Metric("seconds_train", "s", "Forward, backward and optimiser.", Subject.TIME),
    Metric("seconds_save", "s", "Writing the checkpoint of the version before.", Subject.TIME),
    Metric("seconds_publish", "s", "Uploading and announcing the version before.", Subject.TIME),
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
"""By name, in the order in which people look."""


def metric_named(name: str) -> Metric | None:
    """The metric called ``name``, or the family that it belongs to; ``None`` where nobody declared it."""
    if name in METRICS:
        return METRICS[name]
    families = (metric for metric in METRICS.values() if metric.name.endswith("*"))
    return next((family for family in families if name.startswith(family.name.removesuffix("*"))), None)
