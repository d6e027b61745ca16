"""Grafana's alert rules: what an operator is called for, each a query with one number and a bound.

The queries have no macro and no variable, since Grafana would take a ``$`` in these files for its own environment, and
variables do not exist in rules.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.deploy.grafana.datasource import UID, query

FOLDER, GROUP = "headrace", "headrace"
_EXPRESSIONS = "__expr__"


class When(StrEnum):
    """On which side of its bound a rule alarms; the names are Grafana's."""

    ABOVE = "gt"
    BELOW = "lt"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule: a number, a bound and what to do."""

    uid: str
    """Uid, which never changes."""
    title: str
    """What is wrong, in a few words."""
    sql: str
    """A query with one row and one column, ``value``; no row is no alarm."""
    when: When
    """The side of the bound that alarms."""
    bound: float
    """The bound."""
    minutes: int
    """For how long the number must be beyond the bound."""
    severity: str
    """``critical`` or ``warning``."""
    remedy: str
    """What to look at, and the command that helps."""


_NOW = "now64(3)"
_RUNNING = f"""(
    SELECT run FROM budget GROUP BY run
    HAVING argMax(max_groups, (version, time)) > 0 AND max(time) > {_NOW} - INTERVAL 1 DAY
)"""
"""Runs whose trainer has not announced its end, and that did something in the last day."""

_VERSION_MEANS = """
    SELECT run, oldest_version AS version, sum(normalised) AS total, count() AS n
    FROM rewards_latest
    WHERE purpose = 'train' AND role != 'frozen' AND oldest_version IS NOT NULL AND normalised IS NOT NULL
      AND ended_at > now64(3) - INTERVAL 1 DAY
    GROUP BY run, version"""

RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "headrace-critical",
        "A part raised a critical alert",
        f"SELECT uniqExact(id) AS value FROM alerts WHERE severity = 'critical' AND time > {_NOW} - INTERVAL 10 MINUTE",
        When.ABOVE,
        0,
        0,
        "critical",
        "Read it on the overview page, or `headrace tail alerts`: each alert says what to do.",
    ),
    AlertRule(
        "headrace-dead-letters",
        "Records cannot be read",
        f"SELECT uniqExact(id) AS value FROM dead_letters WHERE logged_at > {_NOW} - INTERVAL 10 MINUTE",
        When.ABOVE,
        0,
        0,
        "critical",
        "`headrace dead-letters list` names producer and fault; after the repair, `headrace dead-letters redrive`.",
    ),
    AlertRule(
        "headrace-lag",
        "A consumer group is more than a minute behind",
        f"SELECT max(seconds) AS value FROM lag WHERE time > {_NOW} - INTERVAL 1 MINUTE HAVING count() > 0",
        When.ABOVE,
        60,
        5,
        "warning",
        "`headrace topology --lag` names the group; start more processes of it, up to one for each partition.",
    ),
    AlertRule(
        "headrace-sink-silent",
        "The sink writes nothing",
        f"SELECT dateDiff('second', max(time), {_NOW}) AS value FROM sinks HAVING count() > 0",
        When.ABOVE,
        60,
        1,
        "critical",
        "`headrace status` shows whether the sink runs; its log says why not. Nothing is lost: it reads on from there.",
    ),
    AlertRule(
        "headrace-no-steps",
        "A trainer makes no steps",
        f"""SELECT max(dateDiff('second', last, {_NOW})) AS value
FROM (SELECT run, max(time) AS last FROM steps GROUP BY run) WHERE run IN {_RUNNING} HAVING count() > 0""",
        When.ABOVE,
        900,
        5,
        "critical",
        "The trainer's page says whether it starves or stands still; `headrace status`, and the trainer's log.",
    ),
    AlertRule(
        "headrace-samplers-silent",
        "Samplers send nothing",
        f"""SELECT max(dateDiff('second', last, {_NOW})) AS value
FROM (SELECT run, max(logged_at) AS last FROM trajectories GROUP BY run) WHERE run IN {_RUNNING} HAVING count() > 0""",
        When.ABOVE,
        600,
        5,
        "warning",
        "`headrace ledger` shows whether groups are in flight; without any, the samplers have stopped.",
    ),
    AlertRule(
        "headrace-sdk-drops",
        "An SDK dropped events",
        f"""SELECT sum(greatest(0, newer - older)) AS value FROM (
    SELECT source,
           toInt64(maxIf(arraySum(mapValues(dropped)), time > {_NOW} - INTERVAL 15 MINUTE)) AS newer,
           toInt64(maxIf(arraySum(mapValues(dropped)), time <= {_NOW} - INTERVAL 15 MINUTE)) AS older
    FROM sdk_stats WHERE time > {_NOW} - INTERVAL 1 DAY GROUP BY source
)""",
        When.ABOVE,
        0,
        0,
        "warning",
        "The fleet page names the source and the reason: a full queue, a full spool, or records that are too large.",
    ),
    AlertRule(
        "headrace-version-skew",
        "An engine serves an old version",
        f"""SELECT max(published - served) AS value
FROM (
    SELECT run, toInt64(max(version)) AS published FROM weights WHERE time > {_NOW} - INTERVAL 1 DAY GROUP BY run
) AS w
INNER JOIN (
    SELECT run, engine, toInt64(argMax(version, time)) AS served FROM applied
    WHERE time > {_NOW} - INTERVAL 1 DAY GROUP BY run, engine
) AS a USING (run) HAVING count() > 0""",
        When.ABOVE,
        2,
        5,
        "warning",
        "The follower's log says why it does not swap; the engine keeps the version that it has.",
    ),
    AlertRule(
        "headrace-reward-drop",
        "The reward has dropped",
        f"""SELECT min(late_mean - early_mean) AS value FROM (
    SELECT run,
           sumIf(total, version > newest - 5) / sumIf(n, version > newest - 5) AS late_mean,
           sumIf(total, version <= newest - 5 AND version > newest - 25)
               / sumIf(n, version <= newest - 5 AND version > newest - 25) AS early_mean
    FROM ({_VERSION_MEANS}) AS means
    INNER JOIN (SELECT run, max(version) AS newest FROM ({_VERSION_MEANS}) GROUP BY run) AS ends USING (run)
    GROUP BY run
    HAVING sumIf(n, version > newest - 5) >= 30 AND sumIf(n, version <= newest - 5 AND version > newest - 25) >= 30
) HAVING count() > 0""",
        When.BELOW,
        -0.1,
        0,
        "warning",
        "Compare the versions by source and component on the overview page, then `headrace lineage --version V`.",
    ),
    AlertRule(
        "headrace-held-out",
        "A held-out evaluation is worse than an earlier one",
        """SELECT min(latest - best) AS value FROM (
    SELECT run, evaluation, argMax(mean, version) AS latest, max(mean) AS best FROM (
        SELECT run, evaluation, oldest_version AS version, avg(normalised) AS mean, count() AS n
        FROM (SELECT trajectory_id, run, normalised, oldest_version FROM rewards_latest
              WHERE purpose = 'evaluate' AND normalised IS NOT NULL AND oldest_version IS NOT NULL
                AND ended_at > now64(3) - INTERVAL 1 DAY) AS scored
        INNER ANY JOIN (SELECT trajectory_id, evaluation FROM trajectories WHERE evaluation != '') AS labelled
        USING (trajectory_id)
        GROUP BY run, evaluation, version HAVING n >= 30
    ) GROUP BY run, evaluation
) HAVING count() > 0""",
        When.BELOW,
        -0.1,
        0,
        "warning",
        "The overview shows evaluations by version; a trained reward that rises meanwhile pays for something else.",
    ),
)


def provisioning() -> dict[str, Any]:
    """Returns Grafana's file of alert rules."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": GROUP,
                "folder": FOLDER,
                "interval": "1m",
                "rules": [_provisioned(rule) for rule in RULES],
            }
        ],
    }


def _provisioned(rule: AlertRule) -> dict[str, Any]:
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": "C",
        "data": [
            {
                "refId": "A",
                "relativeTimeRange": {"from": 600, "to": 0},
                "datasourceUid": UID,
                "model": query(rule.sql),
            },
            _expression("B", {"type": "reduce", "expression": "A", "reducer": "last"}),
            _expression(
                "C",
                {
                    "type": "threshold",
                    "expression": "B",
                    "conditions": [{"evaluator": {"type": rule.when.value, "params": [rule.bound]}}],
                },
            ),
        ],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": f"{rule.minutes}m",
        "labels": {"severity": rule.severity, "system": "headrace"},
        "annotations": {"summary": rule.title, "description": rule.remedy},
    }


def _expression(name: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": name,
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": _EXPRESSIONS,
        "model": {"refId": name, "datasource": {"type": _EXPRESSIONS, "uid": _EXPRESSIONS}, **model},
    }
