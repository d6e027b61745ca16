"""Rules for Prometheus: their metrics are those that are exported, and promtool takes them."""

import json
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from headrace.streams.oncall.conditions import CHECKED, CONDITIONS, OPEN_MONITORS, Found, Limits
from headrace.streams.oncall.metrics import observe_oncall, prometheus_name
from headrace.streams.oncall.oncall import Measured
from headrace.streams.oncall.prometheus_rules import Rule, rules, rules_yaml
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
      - {series: 'headrace_oncall_lag_seconds{group="sink"}', values: '0 310 320 330 340 350 20 20'}
      - {series: 'headrace_oncall_monitors_open{monitor="reward"}', values: '0x4 1x4'}
      - {series: 'headrace_oncall_checked_seconds{what="kafka"}', values: '1x20'}
    alert_rule_test:
      - {eval_time: 1m, alertname: HeadraceLag}
      - eval_time: 2m
        alertname: HeadraceLag
        exp_alerts:
          - exp_labels: {severity: warning, group: sink}
            exp_annotations:
              summary: "A consumer group is far behind: what it writes is late."
              description: "sink: 340"
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


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("CI") != "true",
    reason="promtool is not installed (apt-get install prometheus)",
)


def promtool(folder: Path, cases: str) -> None:
    (folder / "rules.yaml").write_text(rules_yaml(rules()))
    (folder / "cases.yaml").write_text(cases)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "cases.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_the_rules_and_they_fire_as_meant(tmp_path: Path) -> None:
    promtool(tmp_path, CASES)


MONITORS = {
    "HeadraceRewardDrop": ("reward", "component:answer"),
    "HeadraceHeldoutRegression": ("heldout", "heldout_gap"),
    "HeadraceMonitor": ("few_calls", "reward_ks", "tripwire"),
}
"""Rule about open alerts → monitors for whose alerts it fires."""
STEP_S = 30


def one_rule(rule: Rule) -> dict[str, Any]:
    """Returns a test of promtool: ``rule`` fires for series at its bound once they have lasted, and for no others."""
    found = re.fullmatch(r"(\w+)(?:\{.*\})? (>=|>) ([\d.]+)", rule.expr)
    assert found is not None, rule.expr
    metric, comparison, bound = found.groups()
    fires, stays = (float(bound), float(bound) - 0.01) if comparison == ">=" else (float(bound) + 1, float(bound))
    values = MONITORS.get(rule.alert, ("it",)) if rule.subject else ("",)
    if rule.alert in MONITORS:  # open alerts of other monitors have rules of their own
        others = {each: fires for monitors in MONITORS.values() for each in monitors if each not in values}
    else:
        others = {"other": stays} if rule.subject else {}

    def name(value: str) -> str:
        return f'{metric}{{{rule.subject}="{value}"}}' if value else metric

    last = int(rule.for_s) // STEP_S + 2
    expected = [
        {
            "exp_labels": {"severity": str(rule.severity), **({rule.subject: value} if value else {})},
            "exp_annotations": {
                "summary": rule.about,
                "description": f"{value}: {humanized(fires)}" if value else humanized(fires),
                "runbook": f"headrace runbook {rule.runbook}",
            },
        }
        for value in values
    ]
    return {
        "interval": f"{STEP_S}s",
        "input_series": [
            *({"series": name(value), "values": f"{stays}x1 {fires}x{last}"} for value in values),
            *({"series": name(value), "values": f"{level}x{last}"} for value, level in others.items()),
        ],
        "alert_rule_test": [
            {"eval_time": f"{(last - 1) * STEP_S}s", "alertname": rule.alert},
            {"eval_time": f"{last * STEP_S}s", "alertname": rule.alert, "exp_alerts": expected},
        ],
    }


def humanized(value: float) -> str:
    """Returns ``value`` as `humanize` of Prometheus's templates writes it."""
    return f"{value / 1000:.4g}k" if value >= 1000 else f"{value:.4g}"


@needs_promtool
def test_every_rule_fires_from_its_bound_on_and_after_its_time(tmp_path: Path) -> None:
    made = [rule for rule in rules() if rule.alert != "HeadraceOnCallSilent"]  # that one is in CASES
    assert len(made) == len(CONDITIONS) + 4
    tests = [one_rule(rule) for rule in made]
    cases = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{STEP_S}s", "tests": tests}
    promtool(tmp_path, json.dumps(cases))
