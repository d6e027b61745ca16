"""``headrace metrics``: every metric of a training step, with unit, meaning and threshold."""

import click

from headrace.deploy.terminal import tell_json, tell_page


@click.command("metrics")
@click.option("--markdown", is_flag=True, help="As a Markdown page.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(markdown: bool, as_json: bool) -> None:
    """Print what the trainer measures: name, unit, meaning, and from where on a value is a warning.

    The names are those of the metrics of `steps`; in ClickHouse metrics['kl_k3'], in Prometheus headrace_trainer_kl_k3.
    """
    from dataclasses import asdict

    from headrace.trainer.learning.metric_page import metric_lines, metric_page
    from headrace.trainer.learning.metric_registry import METRICS

    if as_json:
        tell_json([asdict(metric) for metric in METRICS.values()], indent=1)
    else:
        tell_page(metric_page() if markdown else metric_lines())
