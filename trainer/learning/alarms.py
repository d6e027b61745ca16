"""Alarms on a step's metrics: raised once per episode, however many steps it lasts. Pure.

    watch(metrics, open, settings, …) → (alerts, open)

An episode begins with the first step beyond a bound and ends after ``clear_after`` consecutive steps inside it, so a
metric that oscillates around its bound is a single episode. The default bounds are those of ``metric_registry.py``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from headrace.schemas.records.alert import Alert, Severity
from headrace.trainer.learning.metric_registry import METRICS

RaisedAlarms = Mapping[str, int]
"""Kinds of the raised alarms → consecutive steps inside the bound since."""

_OFF_POLICY = "lower max_staleness or the learning rate, or give the correction an importance"
_ENGINE = "compare the engine's dtype, kernels and sampling settings with the trainer's, and its canaries in applied"
_HELD_BACK = "lower max_staleness, substeps or the learning rate, or widen the bounds of the correction"

_REMEDIES = {
    "effective_sample_size": _OFF_POLICY,
    "kl_k3": _OFF_POLICY,
    "chi2": _OFF_POLICY,
    "mismatch_kl": _ENGINE,
    "clip_fraction_low": "lower the learning rate or substeps, or widen the loss's clip",
    "clip_fraction_high": "lower the learning rate or substeps, or widen the loss's clip",
    "tokens_kept_share": _HELD_BACK,
    "correction_truncated": _HELD_BACK,
    "staleness_p95": "lower max_staleness, or lower max_steps_ahead, which limits the sampler's budget",
}


@dataclass(frozen=True, slots=True)
class AlarmSettings:
    """Bounds beyond which an alert is published; ``None``: never. NaN is beyond every bound."""

    effective_sample_size_below: float | None = METRICS["effective_sample_size"].warn_below
    """Effective share of the tokens, (Σρ)² / (N Σρ²)."""
    kl_k3_above: float | None = METRICS["kl_k3"].warn_above
    """KL divergence from the behaviour policies, nats."""
    chi2_above: float | None = METRICS["chi2"].warn_above
    """χ² divergence from the behaviour policies."""
    mismatch_kl_above: float | None = METRICS["mismatch_kl"].warn_above
    """KL between trainer and engine at the same weights, nats."""
    clip_fraction_low_above: float | None = METRICS["clip_fraction_low"].warn_above
    """Share of the kept tokens that the lower bound clips."""
    clip_fraction_high_above: float | None = METRICS["clip_fraction_high"].warn_above
    """Share of the kept tokens that the upper bound clips."""
    tokens_kept_share_below: float | None = METRICS["tokens_kept_share"].warn_below
    """Share of the sampled tokens that are not masked."""
    correction_truncated_above: float | None = METRICS["correction_truncated"].warn_above
    """Share of the kept tokens whose importance weight is truncated."""
    staleness_p95_above: float | None = METRICS["staleness_p95"].warn_above
    """Versions between sampling and training, 95th percentile over tokens."""
    clear_after: int = 3
    """Consecutive steps inside the bound that end an episode."""

    def __post_init__(self) -> None:
        if self.clear_after < 1:
            raise ValueError(f"clear_after of alarms is {self.clear_after}: it must be at least 1")

    def bounds(self) -> dict[str, float]:
        """Returns the bounds that are set, by the setting's name, which is also the alert's kind."""
        return {
            name: bound for name, bound in asdict(self).items() if bound is not None and name != "clear_after"
        }  # fmt: skip


def watch(
    metrics: Mapping[str, float], raised: RaisedAlarms, settings: AlarmSettings, *, run: str, step: int
) -> tuple[list[Alert], dict[str, int]]:
    """Returns the alerts of the episodes that begin with ``step``, and the raised alarms after it.

    A step without the metric (no token is fresh, or no correction is set) neither begins an episode nor counts towards
    its end. An alert's kind is the name of the setting that bounds the metric.
    """
    alerts, after = [], dict[str, int]()
    for kind, bound in settings.bounds().items():
        metric, side = kind.rsplit("_", 1)
        value = metrics.get(metric)
        if value is None:
            after |= {kind: raised[kind]} if kind in raised else {}
        elif not (value >= bound if side == "below" else value <= bound):
            if kind not in raised:
                alerts.append(_alert(kind, metric, side, value, bound, run=run, step=step))
            after[kind] = 0
        elif kind in raised and raised[kind] + 1 < settings.clear_after:
            after[kind] = raised[kind] + 1
    return alerts, after


def _alert(kind: str, metric: str, side: str, value: float, bound: float, *, run: str, step: int) -> Alert:
    return Alert(
        run=run,
        source="trainer",
        kind=kind,
        severity=Severity.WARNING,
        message=f"{metric} is {value:.3g} at step {step}, {side} {bound:g}: {_REMEDIES[metric]}",
        details={"step": step, "metric": metric, "value": value, side: bound},
    )
