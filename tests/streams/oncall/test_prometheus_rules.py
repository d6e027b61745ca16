"""Rules for Prometheus: their metrics are those that are exported, and promtool takes them."""

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from headrace.streams.oncall.conditions import CHECKED, CONDITIONS, OPEN_MONITORS, Found, Limits
from headrace.streams.oncall.metrics import observe_oncall, prometheus_name
from headrace.streams.oncall.oncall import Measured
from headrace.streams.oncall.prometheus_rules import rules, rules_yaml
from headrace.trainer.progress.gauges import observe_progress
from headrace.trainer.progress.progress import Progress

MEASURED = Measured(
    values={condition.name: [Found("x" if condition.subject else "", 7.0)] for condition in CONDITIONS},
    monitors={"reward": 1, "tripwire": 2},
    at_s={"kafka": 0.0},
)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Name → labels of every exported metric."""
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    observe_oncall(MEASURED, provider.get_meter("test"))
    observe_progress(Progress([]), provider.get_meter("trainer"))
    found: dict[str, set[str]] = {}
    for line in generate_latest(registry).decode().splitlines():
        if match := re.match(r"(?P<name>headrace_\w+)(\{(?P<labels>.*)\})? ", line):
            found[match["name"]] = set(re.findall(r"(\w+)=", match["labels"] or ""))
    provider.shutdown()
    return found


def test_names_in_prometheus_are_those_that_we_compute(exported: dict[str, set[str]]) -> None:
    metrics = [*(condition.metric for condition in CONDITIONS), OPEN_MONITORS, CHECKED]
    assert {prometheus_name(metric) for metric in metrics} <= exported.keys()


def test_rules_use_exported_metrics_and_their_labels(exported: dict[str, set[str]]) -> None:
    for rule in rules():
        names = set(re.findall(r"headrace_\w+", rule.expr))
        assert names
        assert names <= exported.keys(), rule.alert
        wanted = {*re.findall(r"(\w+)[!=]~?\"", rule.expr), *([rule.subject] if rule.subject else [])}
        assert all(wanted <= exported[name] for name in names), rule.alert


def test_the_file_is_yaml_with_a_rule_for_each_condition() -> None:
    (group,) = import_module("yaml").safe_load(rules_yaml(rules()))["groups"]
    by_name = {rule["alert"]: rule for rule in group["rules"]}
    assert {"HeadraceLag", "HeadraceDeadLetters", "HeadraceNoSteps", "HeadraceLedgerMismatch"} < by_name.keys()
    assert len(by_name) == len(CONDITIONS) + 5
    lag = by_name["HeadraceLag"]
    assert (lag["expr"], lag["for"]) == ("headrace_oncall_lag_seconds >= 300", "60s")
    assert lag["annotations"]["runbook"] == "headrace runbook lag"
    assert lag["annotations"]["description"] == "{{ $labels.group }}: {{ $value | humanize }}"


def test_limits_of_the_settings_are_in_the_rules() -> None:
    text = rules_yaml(rules(Limits(lag_s=20, hold_s=5)))
    assert "headrace_oncall_lag_seconds >= 20" in text
    assert "for: 5s" in text


CASES = """
rule_files: [rules.yaml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {series: 'headrace_oncall_lag_seconds{group="headrace-sink"}', values: '0 310 320 330 340 350 20 20'}
      - {series: 'headrace_oncall_monitors_open{monitor="reward"}', values: '0x4 1x4'}
      - {series: 'headrace_oncall_checked_seconds{what="kafka"}', values: '1x20'}
    alert_rule_test:
      - {eval_time: 1m, alertname: HeadraceLag}
      - eval_time: 2m
        alertname: HeadraceLag
        exp_alerts:
          - exp_labels: {severity: warning, group: headrace-sink}
            exp_annotations:
              summary: "A consumer group is far behind: what it writes is late."
              description: "headrace-sink: 340"
              runbook: headrace runbook lag
      - {eval_time: 3m, alertname: HeadraceLag}
      - eval_time: 3m
        alertname: HeadraceRewardDrop
        exp_alerts:
          - exp_labels: {severity: warning, monitor: reward}
            exp_annotations:
              summary: The mean reward, or a component of it, has fallen.
              description: "reward: 1"
              runbook: headrace runbook reward-drop
      - {eval_time: 3m, alertname: HeadraceMonitor}
      - {eval_time: 3m, alertname: HeadraceOnCallSilent}
  - interval: 30s
    input_series: []
    alert_rule_test:
      - eval_time: 5m
        alertname: HeadraceOnCallSilent
        exp_alerts:
          - exp_labels: {severity: critical, what: kafka}
            exp_annotations:
              summary: "The process oncall does not measure: none of the other alerts can be relied on."
              description: "1"
              runbook: headrace runbook oncall-silent
"""
"""Unit tests of the rules, as promtool reads them."""


@pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("CI") != "true",
    reason="promtool is not installed (apt-get install prometheus)",
)
def test_promtool_takes_the_rules_and_they_fire_as_meant(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rules_yaml(rules()))
    (tmp_path / "cases.yaml").write_text(CASES)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "cases.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
