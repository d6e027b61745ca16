"""``headrace metrics``: every metric of a training step, with unit, meaning and threshold."""

import click

from headrace.deploy.terminal import print_json, print_text


@click.command("metrics")
@click.option("--markdown", is_flag=True, help="Print a Markdown page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(markdown: bool, as_json: bool) -> None:
    """Print the trainer's metrics: name, unit, meaning, warning threshold.

    `steps` uses the same names. kl_k3, for example, is metrics['kl_k3'] in ClickHouse and headrace_trainer_kl_k3 in
    Prometheus.
    """
    from dataclasses import asdict

    from headrace.trainer.learning.metric_page import metric_lines, metric_page
    from headrace.trainer.learning.metric_registry import METRICS

    if as_json:
        print_json([asdict(metric) for metric in METRICS.values()], indent=1)
    else:
        print_text(metric_page() if markdown else metric_lines())
