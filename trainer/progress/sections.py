"""Metrics by subject, as the sections of dashboards."""

from collections.abc import Mapping

from headrace.trainer.learning.metric_registry import metric_named


def grouped(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics as ``<subject>/<name>``, which TensorBoard and W&B show as sections: ``off-policy/kl_k3``."""
    subjects = {name: metric_named(name) for name in metrics}
    return {
        f"{metric.subject.lower().replace(' ', '-') if metric else 'other'}/{name}": metrics[name]
        for name, metric in subjects.items()
    }
