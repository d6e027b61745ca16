"""Alert rules for Prometheus, made of the list of conditions: ``headrace metrics --rules``. Pure.

- alert: HeadraceLag
  expr: "headrace_oncall_lag_seconds >= 300"
  for: 60s
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.schemas.records.alert import Severity
from headrace.streams.oncall.conditions import CHECKED, CONDITIONS, OPEN_MONITORS, Condition, Limits, hold_of, limit_of
from headrace.streams.oncall.metrics import prometheus_name

SILENT_S = 300
"""Seconds without a measurement after which ``oncall`` counts as silent."""
OUTAGE_S = 60
"""Seconds for which the trainer may wait for disk, object store or Kafka."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule."""

    alert: str
    """Its name."""
    expr: str
    """PromQL."""
    about: str
    """What it means, in a sentence."""
    runbook: str
    """Name of its runbook."""
    for_s: float = 0.0
    """Seconds for which the expression must hold."""
    severity: Severity = Severity.WARNING
    """How urgent it is."""
    subject: str = ""
    """Label that names what it is about."""


def rules(limits: Limits | None = None) -> list[Rule]:
    """Returns the rules, with the values of ``limits``."""
    limits = limits or Limits()
    monitors = prometheus_name(OPEN_MONITORS)
    checked = prometheus_name(CHECKED)
    hacks = 'monitor!~"reward|component:.*|heldout|heldout_gap"'
    return [
        *(_rule(condition, limits) for condition in CONDITIONS),
        Rule(
            "HeadraceRewardDrop",
            f'{monitors}{{monitor=~"reward|component:.*"}} > 0',
            "The mean reward, or a component of it, has fallen.",
            "reward-drop",
            subject="monitor",
        ),
        Rule(
            "HeadraceHeldoutRegression",
            f'{monitors}{{monitor=~"heldout|heldout_gap"}} > 0',
            "Evaluations do worse, or gain less than training rollouts.",
            "heldout-regression",
            subject="monitor",
        ),
        Rule(
            "HeadraceMonitor",
            f"{monitors}{{{hacks}}} > 0",
            "A monitor of behaviour or of inputs alarms: a hack, or a change of what is asked.",
            "reward-hack",
            subject="monitor",
        ),
        Rule(
            "HeadraceTrainerOutage",
            f"headrace_trainer_outage_seconds > {OUTAGE_S}",
            "The trainer waits for its disk, its object store or Kafka.",
            "no-steps",
        ),
        Rule(
            "HeadraceOnCallSilent",
            f'absent({checked}{{what="kafka"}}) or {checked} > {SILENT_S}',
            "The process oncall does not measure: none of the other alerts can be relied on.",
            "oncall-silent",
            for_s=120.0,
            severity=Severity.CRITICAL,
        ),
    ]


def _rule(condition: Condition, limits: Limits) -> Rule:
    return Rule(
        "Headrace" + "".join(word.title() for word in condition.name.split("-")),
        f"{prometheus_name(condition.metric)} >= {limit_of(condition, limits):g}",
        condition.about,
        condition.name,
        hold_of(condition, limits),
        condition.severity,
        condition.subject,
    )


def rules_yaml(made: Iterable[Rule]) -> str:
    """Returns rules as a rule file of Prometheus. Text is quoted as in JSON, which YAML reads alike."""
    lines = [
        "# Made by `headrace metrics --rules`; the process oncall exports the metrics.",
        "groups:",
        "  - name: headrace",
        "    rules:",
    ]
    for rule in made:
        value = "{{ $value | humanize }}"
        description = f"{{{{ $labels.{rule.subject} }}}}: {value}" if rule.subject else value
        lines += [
            f"      - alert: {rule.alert}",
            f"        expr: {json.dumps(rule.expr)}",
            f"        for: {rule.for_s:g}s",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.about, ensure_ascii=False)}",
            f"          description: {json.dumps(description)}",
            f"          runbook: {json.dumps(f'headrace runbook {rule.runbook}')}",
        ]
    return "\n".join(lines) + "\n"
