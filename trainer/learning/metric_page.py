"""The registry of metrics for people: as lines, and as the page METRICS.md."""

from collections.abc import Iterator

from headrace.trainer.learning.metric_registry import METRICS, Metric, Subject

_HEAD = """# What the trainer measures

Every step says these numbers: as `metrics` of its record in `steps`, as `headrace_trainer_…` to Prometheus and OTLP, on
the dashboard's trainer page, and to TensorBoard and W&B where they are asked for. Made by `headrace metrics
--markdown`; a test holds page and code together, and every metric of a real step against this list.
"""


def metric_page() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_sections()])


def metric_lines() -> str:
    """Every metric in a line or two."""
    lines = []
    for subject in Subject:
        lines.append(f"{subject}: {subject.about}")
        for metric in _of(subject):
            threshold = f"  [warning {metric.threshold}]" if metric.threshold else ""
            lines.append(f"  {metric.name} ({_unit(metric)}): {metric.about}{threshold}")
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[str]:
    for subject in Subject:
        yield f"## {subject}\n\n{subject.about}\n\n| metric | unit | meaning | warning |\n|---|---|---|---|"
        for metric in _of(subject):
            yield f"| `{metric.name}` | {_unit(metric)} | {metric.about} | {metric.threshold} |"
        yield ""


def _of(subject: Subject) -> list[Metric]:
    return [metric for metric in METRICS.values() if metric.subject == subject]


def _unit(metric: Metric) -> str:
    return metric.unit.strip("{}")
