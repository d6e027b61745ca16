"""``headrace metrics``: every metric of a training step, and alert rules for Prometheus."""

import click

from headrace.deploy.terminal import print_json, print_text


@click.command("metrics")
@click.option("--markdown", is_flag=True, help="Print a Markdown page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--rules", is_flag=True, help="Print alert rules for Prometheus, of the conditions of `oncall`.")
def command(markdown: bool, as_json: bool, rules: bool) -> None:
    """Print the trainer's metrics: name, unit, meaning, warning threshold.

    `steps` uses the same names. kl_k3, for example, is metrics['kl_k3'] in ClickHouse and headrace_trainer_kl_k3 in
    Prometheus.

    With --rules: a rule file of Prometheus, with the limits of this stack's options (`oncall.limits.lag_s` …). The
    process `oncall` must run and be scraped.
    """
    if sum((markdown, as_json, rules)) > 1:
        raise click.UsageError("choose one of --markdown, --json and --rules")
    if rules:
        from headrace.deploy.configuration.settings import load_settings
        from headrace.deploy.processes.oncall import oncall_limits
        from headrace.streams.oncall.prometheus_rules import rules as rules_of
        from headrace.streams.oncall.prometheus_rules import rules_yaml

        print_text(rules_yaml(rules_of(oncall_limits(load_settings()))))
        return
    from dataclasses import asdict

    from headrace.trainer.learning.metric_page import metric_lines, metric_page
    from headrace.trainer.learning.metric_registry import METRICS

    if as_json:
        print_json([asdict(metric) for metric in METRICS.values()], indent=1)
    else:
        print_text(metric_page() if markdown else metric_lines())
